// SampleSort, naive: every rank reads all values from its peers, sorts all of them and keeps its own piece. bfloat16 only.
//
// Nothing is shared of the work: W ranks each sort N values. Shards differ in length, and one without values has no
// address either: both are exchanged through scratch. All ranks meet when that is done, and when all have read.
#include <algorithm>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using pkb::bf16;

struct Shard {
  int64_t length;
  int64_t offset;  // into the rank's segment
};

void solution(tvm::ffi::TensorView local_shard, int64_t group, tvm::ffi::TensorView sorted_shard, pkb::Comm comm) {
  if (local_shard.dtype() != DLDataType{kDLBfloat, 16, 1}) {
    TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << local_shard.dtype();
  }
  Shard* shard = comm.scratch<Shard>();
  *shard = {local_shard.numel(), static_cast<char*>(local_shard.data_ptr()) - comm.segments[comm.rank]};
  comm.barrier(group);

  std::vector<float> all;
  for (int r = 0; r < comm.world_size; ++r) {
    const Shard* theirs = comm.peer(shard, r);
    const auto* values = reinterpret_cast<const bf16*>(comm.segments[r] + theirs->offset);
    all.insert(all.end(), values, values + theirs->length);
  }
  comm.barrier(group);
  std::sort(all.begin(), all.end());
  const int64_t N = all.size(), W = comm.world_size;
  const int64_t begin = comm.rank * (N / W) + std::min<int64_t>(comm.rank, N % W);

  auto* piece = static_cast<bf16*>(sorted_shard.data_ptr());
  for (int64_t i = 0; i < sorted_shard.numel(); ++i) piece[i] = bf16(all[begin + i]);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
