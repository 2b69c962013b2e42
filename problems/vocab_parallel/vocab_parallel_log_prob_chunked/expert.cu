// VocabParallelLogProbChunked: the kernel of VocabParallelLogProb, for all chunks at once.
//
// Chunks bound the memory that the baseline needs for whole rows: every rank holds a chunk's logits of all ranks, sorted.
// Here a rank's shard of a row is boiled down, as it is read, to what the filter needs, a few numbers, which go to the
// token's owner (pkb/filtered_log_prob_cuda.h, pkb/vocab_shards_cuda.h). That needs no memory to speak of, so that tokens
// of all chunks follow each other without a pause, and the size of a chunk changes nothing.
//
// Bound: memory, one read of the logits. What crosses the link is k + 2 words of 8 bytes a token and rank, and a word back.
//
// Left on the table: top-p alone needs whole rows, which cross the link to the token's owner; there, and at small sizes,
// a block gathers and filters a row by itself.
#include "pkb/filtered_log_prob_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, int64_t /* chunk_size */, TensorView logprobs, pkb::Comm comm) {
  pkb::vocab::filtered_log_probs(vocab_parallel_logits, target, tp_group, top_k.value_or(0), top_p.value_or(1.0),
                                 logprobs, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
