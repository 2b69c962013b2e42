// VocabParallelLogProb: logits stay where they are; every rank boils its shard of a row down to what the filter needs.
//
// What moves: a warp streams a rank's shard of a token through shared memory and keeps its k largest logits, with the
// number of those that equal the k-th (without filters, the largest logit and the sum of exponentials). This summary
// goes, with the target's logit, to the token's owner, and the warp goes on to its next row; nothing waits before all
// rows have been summarised. Then the owner joins the W summaries, cuts the tail, and sends the log-probability to the
// others. Each 8-byte word of a message carries the number of the call, so that its reader needs no other signal
// (pkb/tagged_cuda.h), and lies in scratch, so that nobody touches a peer's arguments or outputs. Words lie in two
// halves of scratch by turns, and each rank needs words of all others in every call, so that none can be two calls
// ahead. Bound: memory, one read of the logits.
//
// Top-p alone needs whole rows, and small problems are sooner read than summarised: then a block gathers a row from all
// ranks and filters it by itself, between a wait for all calls' beginning and a barrier of equal blocks. No row is ever
// sorted: borders are found by bisecting the keys of floating-point numbers.
#include "pkb/filtered_log_prob_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, TensorView logprobs, pkb::Comm comm) {
  pkb::vocab::filtered_log_probs(vocab_parallel_logits, target, tp_group, top_k.value_or(0), top_p.value_or(1.0),
                                 logprobs, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
