"""Mutants that keep the call contract without the operation that they lack, with the argument for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    """An operation that some kernels can do without.

    Attributes:
        file: File of the operation: "expert", or a header of `pkb/`.
        code: Beginning of the operation's text.
        problems: Problems whose kernels can do without it; empty for all.
        reason: Argument that the mutant keeps the call contract.
        suffix: File type of the expert, "cpp" or "cu".
        nth: Number among the operations that begin so, from 0; None for all of them.
    """

    file: str
    code: str
    problems: tuple[str, ...]
    reason: str
    suffix: str
    nth: int | None = None


MEET_AT_END = (
    "equal blocks of all ranks meet at the end of each call, so that what lies in scratch has been read before any "
    "rank begins the next call"
)

SUMS_OF_ALL = (
    "each tile is a sum over all ranks' operands: before it is stored anywhere, operands of every peer have been "
    "loaded, which has been waited for"
)

RESULTS_OF_ALL = (
    "a rank ends a call with results of every other rank, which has read all summaries that it was sent before; so "
    "nobody writes summaries of the next call over those that are still to be read"
)

ROWS_ARE_PUSHED = (
    "at these sizes gated inputs are pushed by every rank to every other: a block writes to peers once it has received "
    "rows of each, which have begun the call"
)

PRODUCTS_OF_ALL = ("AllGatherGemm", "AllGatherGemmAT", "GemmAllReduce", "GemmReduceScatter")

FILTERED_LOG_PROBS = ("VocabParallelLogProb", "VocabParallelLogProbChunked")

POWERS_OF_ALL = (
    "dense gradients are summed over all ranks, so that none can be two calls ahead, and no rank asks who has begun"
)

OWN_GROUP = (
    "a rank sends words to the members of one group, the same in each call, and needs words of all of them in every "
    "call, so that none can be two calls ahead, and nobody has to ask who has begun"
)

GRADIENTS_ARE_READ = (
    "outputs are a rank's own, and its gradients, which peers read, are written again behind the fetch of the next "
    "call, which waits until all ranks have begun that call and so have ended this one"
)

RAGGED_EXCHANGES = (
    "GNNFeatureExchange",
    "GNNFeatureExchangeBackward",
    "GNNNegativeScoring",
    "GNNSparseEmbedding",
    "KJTAllToAll",
    "SampleSort",
)

EQUIVALENTS: Sequence[Equivalent] = (
    Equivalent("gemm_peers.h", "wait_begun(block)", PRODUCTS_OF_ALL, SUMS_OF_ALL, "cu", nth=1),
    Equivalent("gemm_reduce.h", "comm.epoch % 2", ("Conv3dAllReduce", "GemmAllReduce"), MEET_AT_END, "cu"),
    Equivalent("expert", "comm_.wait_all_begun(", ("HyenaCP",), ROWS_ARE_PUSHED, "cu", nth=1),
    Equivalent("filtered_log_prob_cuda.h", "comm.epoch % 2", FILTERED_LOG_PROBS, RESULTS_OF_ALL, "cu"),
    Equivalent("mlp_step_cuda.h", "comm.barrier()", ("FSDPStep",), GRADIENTS_ARE_READ, "cu", nth=1),
    Equivalent("clip_norm_cuda.h", "comm.wait_all_begun(1)", ("ClipGradNorm",), OWN_GROUP, "cu"),
    Equivalent("clip_norm_cuda.h", "comm.signal_begun()", ("ClipGradNormEP",), POWERS_OF_ALL, "cu"),
    Equivalent("ragged_cuda.h", "comm.epoch % 2", RAGGED_EXCHANGES, MEET_AT_END, "cu"),
)


def reason_why(problem: str, suffix: str, file: str, code: str, nth: int) -> str | None:
    """Why a mutant is right, or None if it is wrong.

    Args:
        problem: Name of the problem.
        suffix: File type of the expert.
        file: File of the operation.
        code: Text of the operation.
        nth: Number of operations of this file and code before it.
    """
    for each in EQUIVALENTS:
        fits = each.suffix == suffix and each.file == file and code.startswith(each.code)
        if fits and (not each.problems or problem in each.problems) and each.nth in (None, nth):
            return each.reason
    return None
