"""Synchronising operations that an expert reaches at no size, with the reason for each.

Most stand in headers that several kernels include, in branches that other kernels take.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.engine.mutants.equivalent_at_sizes import HEAD_EXCHANGES
from tests.engine.mutants.equivalent_mutants import RAGGED_EXCHANGES


@dataclass(frozen=True)
class Unreached:
    """Operations of a GPU expert.

    Attributes:
        file: File of the operations: "expert", or a header of `pkb/`.
        code: Regular expression of their text, from its beginning.
        problems: Problems whose kernels never reach them.
        reason: Reason that they are not reached.
        ranks: Number of ranks from which on they are reached; None for no number.
        nth: Number among the operations that begin so, from 0; None for all of them.
    """

    file: str
    code: str
    problems: tuple[str, ...]
    reason: str
    ranks: int | None = None
    nth: int | None = None


BOTH_WAYS = "for collectives in which some rank only sends or only receives; here every rank does both"
OWN_FACTORS = "for factors of other ranks; here a product has the rank's own alone"
NO_PEERS = "for products that read or store peers' memory; here their operands and results are the rank's own"
PARTS_OF_AN_ARGUMENT = (
    "for shards that scratch does not hold; here they are parts of one argument, and it has twice as much"
)
LARGE_WEIGHTS = "for weights of more than 16 MiB, which copy engines bring in; published ones are smaller"
OWN_ROWS = "for sums that all ranks get; here each tile's sum stays on one"
WHOLE_WORLD = "for groups that leave ranks out; here dense gradients are summed over all ranks"
OWN_UPDATES = "for steps whose moments are cut in slices, too; here a kernel of its own takes rank 0's moments"
WORLD_OF_TWO = "for groups that leave ranks out; of two ranks none does"
TWO_RANKS = "for more than two ranks, which share what two do alone"
NO_BOXES = "for boxes of messages; here ranks tell each other numbers alone"
OWN_BOXES = "for boxes of messages to all ranks of the world; here the kernel lays out those of a group"
PLACED = "for boxes of messages; here what ranks send goes straight to its place"
WAITED_BEFORE = "for products that wait for peers themselves; here what comes before them has waited"
NO_NUMBERS = "for numbers that ranks tell each other; here owners and places follow from ids"

MOVES_OF_ALL = ("AllGather", "AllToAll", "UlyssesAllGather")
PLACING = ("BlockedFP8Dequantize", "BlockedFP8Quantize", "RingAttentionTP", *HEAD_EXCHANGES)

UNREACHED: Sequence[Unreached] = (
    Unreached("moves_cuda.h", r"comm\.(signal_begun\(\)|wait_all_begun)", MOVES_OF_ALL, BOTH_WAYS, nth=0),
    Unreached("shares_cuda.h", r"comm\.(signal_begun|wait_all_begun)", ("AllReduce", "ReduceScatter"), BOTH_WAYS),
    Unreached("gemm_peers.h", r"wait_begun\(block\)", ("GemmAllGather",), OWN_FACTORS, nth=0),
    Unreached("gemm_peers.h", r"", ("CombinedShardedGemms",), PARTS_OF_AN_ARGUMENT),
    Unreached("gemm_reduce.h", r"meet_at_end", ("GemmReduceScatter",), OWN_ROWS),
    Unreached("gemm_simt.h", r"comm\.barrier", ("DDP", "FSDPStep", "FSDPTensorParallel", "ZeRO1", "ZeRO2"), NO_PEERS),
    Unreached("gemm_simt.h", r"comm\.barrier", ("GNNSparseFeatureFetch", "ImportanceSamplingLoss"), NO_PEERS),
    Unreached("gemm_simt.h", r"comm\.barrier", ("RingAttentionTP", "UlyssesAttention"), NO_PEERS),
    Unreached("gemm_simt.h", r"comm\.barrier", ("DistributedKNN",), WAITED_BEFORE),
    Unreached("exchange_cuda.h", r"comm\.epoch", ("MoELoRAGroupGemmBackward",), OWN_BOXES),
    Unreached("exchange_cuda.h", r"comm\.epoch", PLACING, PLACED),
    Unreached("exchange_cuda.h", r"comm\.epoch", RAGGED_EXCHANGES, NO_BOXES),
    Unreached("ragged_cuda.h", r"comm\.epoch|store_release", ("GNNSparseFeatureFetch", "NeighborSampling"), NO_NUMBERS),
    Unreached("expert", r"every epoch", ("GNNSparseFeatureFetch", "NeighborSampling"), NO_NUMBERS),
    Unreached("expert", r"comm\.barrier", ("FSDPTensorParallel",), LARGE_WEIGHTS, nth=0),
    Unreached("mlp_step_cuda.h", r"comm\.barrier", ("DDP",), OWN_UPDATES),
    Unreached("clip_norm_cuda.h", r"comm\.wait_all_begun", ("ClipGradNormEP",), WHOLE_WORLD),
    Unreached("expert", r"comm\.", ("Broadcast",), TWO_RANKS, ranks=3),
    Unreached("expert", r"comm\.(signal_begun|wait_all_begun)", ("SinkhornKnopp",), WORLD_OF_TWO, ranks=3),
    Unreached("expert", r"comm\.(signal|wait)_block\(rounds,", ("QuantizedGradAllReduce",), TWO_RANKS, ranks=3),
)


def why_unreached(problem: str, file: str, code: str, nth: int, world_size: int) -> str | None:
    """Why no rank of a GPU expert reaches an operation at any size, or None if one does.

    Args:
        problem: Name of the problem.
        file: File of the operation.
        code: Text of the operation.
        nth: Number of operations of this file and code before it.
        world_size: Number of ranks.
    """
    for each in UNREACHED:
        fits = problem in each.problems and each.file == file and re.match(each.code, code)
        if fits and each.nth in (None, nth) and (each.ranks is None or world_size < each.ranks):
            return each.reason
    return None
