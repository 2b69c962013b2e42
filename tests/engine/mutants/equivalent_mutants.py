"""Mutants that keep the call contract without the operation that they lack, with the argument for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

PRODUCTS_OF_ALL = ("AllGatherGemm", "AllGatherGemmAT", "CombinedShardedGemms", "GemmAllReduce", "GemmReduceScatter")

FILTERED_LOG_PROBS = ("VocabParallelLogProb", "VocabParallelLogProbChunked")

POWERS_OF_ALL = (
    "dense gradients are summed over all ranks, so that none can be two calls ahead, and no rank asks who has begun"
)

EQUIVALENTS: Sequence[Equivalent] = (
    Equivalent("gemm_peers.h", "wait_begun(block)", PRODUCTS_OF_ALL, SUMS_OF_ALL, "cu", nth=1),
    Equivalent("gemm_reduce.h", "comm.epoch % 2", ("GemmAllReduce",), MEET_AT_END, "cu"),
    Equivalent("expert", "comm_.wait_all_begun(", ("HyenaCP",), ROWS_ARE_PUSHED, "cu", nth=1),
    Equivalent("filtered_log_prob_cuda.h", "comm.epoch % 2", FILTERED_LOG_PROBS, RESULTS_OF_ALL, "cu"),
    Equivalent("clip_norm_cuda.h", "comm.signal_begun()", ("ClipGradNormEP",), POWERS_OF_ALL, "cu"),
)

ONE_TILE = (
    "at size tiny every block has one tile: no earlier store of its staging memory is under way when it is claimed"
)

FENCES_ON_BOTH_SIDES = (
    "a proxy fence stands before the flag's store and another behind its load; one of them on the path from the one "
    "access to the other is enough (PTX ISA 8.9.5, proxy-preserved base causality order). Without both, the mutant "
    "of `gemm_sm90_ptx.h:115`, it is a race"
)

WAIT_IS_INJECTED = (
    "ptxas injects the wait before the sums are read and says so (C7517); at size tiny a product has one step, so that "
    "no stage of shared memory is filled again"
)

STORES_WAIT_FOR_A_LOAD = (
    "what follows the load are strong stores of tagged words, which depend on its value: if one of them were "
    "seen before, the value would never be sent (PTX ISA 8.10, no thin air)"
)

STORES_AND_SIGNALS = (
    "the thread that signals a rank is the one that has stored to it, and a barrier stands behind the loads of peers"
)

ONE_BLOCK = "at size tiny two ranks launch one block each, whose thread 0 waits for what it has added itself"

BARRIER_BEFORE = "the kernel has another barrier of the block right before the call"

NOBODY_LOADS_IT = "no thread of this kernel loads the count of tiles that is stored"

FENCE_BEHIND_FLAG = "gemm_gather.h:84: fence_async_global()"
FENCE_BEFORE_FLAG = "gemm_gather.h:123: fence_async_global()"
READ_BEFORE_STAGING = 'bulk_copy_cuda.h:69: "cp.async.bulk.wait_group.read %0;" -> ""'
AWAIT_SUMS = 'gemm_sm90_ptx.h:129: "wgmma.wait_group.sync.aligned %0;" -> ""'

AT_TINY: Mapping[tuple[str, str], str] = {
    ("AllGatherGemm", FENCE_BEFORE_FLAG): FENCES_ON_BOTH_SIDES,
    ("AllGatherGemm", FENCE_BEHIND_FLAG): FENCES_ON_BOTH_SIDES,
    ("AllGatherGemm", "gemm_sm90_ptx.h:47: st.release -> st.relaxed"): NOBODY_LOADS_IT,
    ("AllGatherGemm", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("AllGatherGemm", READ_BEFORE_STAGING): ONE_TILE,
    ("AllGatherGemmAT", FENCE_BEFORE_FLAG): FENCES_ON_BOTH_SIDES,
    ("AllGatherGemmAT", FENCE_BEHIND_FLAG): FENCES_ON_BOTH_SIDES,
    ("AllGatherGemmAT", "gemm_sm90_ptx.h:47: st.release -> st.relaxed"): NOBODY_LOADS_IT,
    ("AllGatherGemmAT", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("AllGatherGemmAT", READ_BEFORE_STAGING): ONE_TILE,
    ("GemmAllGather", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("GemmAllGather", READ_BEFORE_STAGING): ONE_TILE,
    ("GemmAllReduce", READ_BEFORE_STAGING): ONE_TILE,
    ("GemmAllReduce", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("GemmReduceScatter", READ_BEFORE_STAGING): ONE_TILE,
    ("GemmReduceScatter", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("HyenaCP", "teams_cuda.h:101: __syncthreads() -> ((void)0)"): BARRIER_BEFORE,
    ("SAM3IoUSuppression", "expert:359: ld.acquire -> ld.relaxed"): ONE_BLOCK,
    ("Gather", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): STORES_WAIT_FOR_A_LOAD,
    ("Scatter", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): STORES_WAIT_FOR_A_LOAD,
    ("VocabParallelLogProb", "symm_cuda.h:162: __syncthreads() -> ((void)0)"): STORES_AND_SIGNALS,
    ("VocabParallelLogProbChunked", "symm_cuda.h:162: __syncthreads() -> ((void)0)"): STORES_AND_SIGNALS,
}
"""(Problem, name of a mutant) -> why it is right at size tiny, where it is judged on emulated GPUs."""


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
