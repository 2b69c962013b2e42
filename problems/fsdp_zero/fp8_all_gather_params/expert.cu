// FP8AllGatherParams: parameters cross the link as the 8-bit codes that they are rounded to, and are scaled back there.
//
// What moves: one kernel reads the slice for its largest value, reads it again to round it, and pushes one byte an
// element and one scale to each peer, which writes bfloat16 numbers into its own output. Few codes go as words that carry
// the number of the call; more in rounds, so that codes of one round are scaled back while those of the next are on
// their way (pkb/fp8_exchange_cuda.h). The baseline gathers the rounded numbers: twice the bytes, after nine passes.
//
// Bound: link, W - 1 slices of codes into each rank; on one rank memory, a read and a write. A peer's scale travels with
// the first codes, and the word of the own scale is the barrier between the search for it and its use.
//
// Left on the table: the second read, as far as the L2 cache has lost the slice, and codes that are written to scratch
// and read again. A history that holds a larger maximum would allow rounding before the search is over.
#include "pkb/fp8_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

void solution(TensorView flat_param_shard, TensorView amax_history, TensorView full, TensorView updated_history,
              pkb::Comm comm) {
  const int64_t slice = flat_param_shard.numel();
  const auto exchange = pkb::fp8_exchange_of(flat_param_shard, amax_history, full, updated_history, slice);
  pkb::launch_fp8_exchange<false>(exchange, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
