// expect: passed
// Peers' addresses are looked up once for each address of the argument, and are right whenever that returns.
#include <unordered_map>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  static std::unordered_map<const void*, std::vector<const pkb::bf16*>> known;
  auto& peers = known[tensor.data_ptr()];
  if (peers.empty()) {
    for (int r = 0; r < comm.world_size; ++r) peers.push_back(comm.peer<pkb::bf16>(tensor, r));
  }
  auto* y = static_cast<pkb::bf16*>(out.data_ptr());
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (const pkb::bf16* peer : peers) sum += float(peer[i]);
    y[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
