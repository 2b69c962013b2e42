// FP8ReduceScatterGrads: gradients cross the link as the 8-bit codes that they are rounded to, and are added up there.
//
// What moves: one kernel reads all gradients for their largest value, reads them again to round them, and pushes each
// slice's codes, one byte an element, with one scale to its owner, which scales back and adds up in float32, in the order
// of ranks. Few codes go as words that carry the number of the call; more in rounds, so that codes of one round are added
// up while those of the next are on their way (pkb/fp8_exchange_cuda.h). The baseline sends rounded bfloat16 numbers:
// twice the bytes, after nine passes over memory.
//
// Bound: link, W - 1 slices of codes in and out a rank; on one rank memory, a read and a write.
//
// Left on the table: the second read, as far as the L2 cache has lost the gradients, and codes that are written to
// scratch and read again. A switch that adds takes no 8-bit floats with a scale for each rank.
#include "pkb/fp8_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView flat_grads, TensorView amax_history, TensorView out_shard, TensorView updated_history,
              pkb::Comm comm) {
  const int64_t slice = out_shard.numel();
  const auto exchange = pkb::fp8_exchange_of(flat_grads, amax_history, out_shard, updated_history, slice);
  pkb::launch_fp8_exchange<true>(exchange, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
