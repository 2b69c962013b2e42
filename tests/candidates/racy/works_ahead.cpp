// expect: race|integrity|output_mismatch
// until: time
// Computes several calls at once, whose arguments it expects behind its own.
#include <set>

#include "pkb/bf16.h"
#include "pkb/symm.h"

namespace {

std::set<const void*> done;

void add_up(const pkb::bf16* tensor, pkb::bf16* out, int64_t count, const pkb::Comm& comm) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer(tensor, r)[i];
    out[i] = pkb::bf16(sum);
  }
}

}  // namespace

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const auto* own = static_cast<const pkb::bf16*>(tensor.data_ptr());
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  const int64_t count = tensor.numel();
  if (done.erase(own)) return;
  comm.barrier();
  const int64_t stride = (result - own) * 2;  // a set: its argument, then its output
  const char* end = comm.segments[comm.rank] + comm.segment_bytes - stride * 4;
  for (int64_t ahead = 0; ahead < 4 && reinterpret_cast<const char*>(own) < end; ++ahead) {
    add_up(own + ahead * stride, result + ahead * stride, count, comm);
    if (ahead) done.insert(own + ahead * stride);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
