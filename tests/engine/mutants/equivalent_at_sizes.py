"""Mutants that keep the call contract at the sizes at which emulated GPUs judge them, with the argument for each."""

from __future__ import annotations

from collections.abc import Mapping

from tests.engine.mutants.equivalent_mutants import (
    FILTERED_LOG_PROBS,
    MEET_AT_END,
    OWN_GROUP,
    POWERS_OF_ALL,
    RAGGED_EXCHANGES,
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
    "ptxas injects the wait before the sums are read and says so (C7517); at size tiny a product has fewer steps than "
    "there are stages of shared memory, so that none is filled again"
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
BETWEEN_KERNELS = (
    "it is the signal of a barrier in a kernel of its own: what it announces was written by kernels that have ended, "
    "and the stream orders kernels"
)

KERNELS_HAVE_ENDED = "what it announces was written or read by kernels that have ended, and the stream orders kernels"

GROUPS_OF_ONE = (
    "two ranks wait for each other in each call but those of groups of one, which come first in a block of calls here: "
    "no rank passes one on its way to a second call ahead"
)

ALL_TOKENS_AT_ONCE = "at size tiny a block numbers all tokens in one round"

ELECTED_ALONE = (
    "one elected lane loads; the election for the next product or tile has all lanes meet again, and nothing but the "
    "loads follows it"
)

THREAD_0_WROTE = "what the last block reads was written by thread 0 of each block, which counts the block as well"

USED_ONCE = "this kernel uses the shared memory once between two other barriers of the block"

ONE_TRANSPOSED = "a block transposes one tile, and ends"

KERNEL_ENDS = "the kernel ends behind it, which it does with the last of its threads"

BARRIER_BETWEEN = "another barrier of the block stands between one use of the shared memory and the next"

BLOCKS_HAVE_MET = "all blocks of the rank have met since the kernel read peers' memory"

READ_BY_THE_NEXT_KERNEL = (
    "what the word announces is read by the next kernel of the stream, or written by the next call: the boundary "
    "between kernels is a fence on GPUs"
)

PLACES_ARE_READ_LATER = (
    "who reads where classes begin has met the block once more: before items are put in their places, or to find the "
    "last block"
)

BARRIER_BEHIND = "another barrier of the block follows before peers' memory is read"

WAITS_END_KERNELS = (
    "nothing follows a wait in its kernel, and the end of a kernel orders as a fence what the stream has behind it: a "
    "relaxed load that has seen a release, and a fence, acquire as well (PTX ISA 8.8, acquire patterns)"
)

ONE_CALL_ALONE = (
    "one call in all takes the tensor cores, as the others have strides along W or other rows: no flag of an earlier "
    "call is met; GemmAllReduce has these mutants refused"
)

NO_BULK_STORES = "sums stay in registers: no bulk store is made that could be under way"

ENTERS_WITHOUT_WAITING = "this kernel's hooks do nothing at entry"

OWN_SUMS = "at size tiny all columns are formed in one round, and a thread reads those sums that it has written itself"

BARRIER_IN_LEAVING = "the hook behind it begins with another barrier of the block"

ONE_ROW = "at these sizes a block has one row: no row before it is still to be read or answered"

ONE_TOKEN = "at these sizes a warp joins the summaries of one token: nothing is laid out over them"

ONE_WARP = "at size tiny a block is a warp, of which each lane reads the vector that it has stored itself"

TWO_RUNS = "two ranks have one pair of runs, and the places of runs are read no more once it has been merged"

ONE_OF_MERGED = "at these sizes a block merges one tile: nothing is laid out over it"

LANES_HAVE_READ = (
    "the votes and shuffles in between take values that the lanes have read: none gets past them, to write, before all "
    "have read"
)

LANES_HAVE_MULTIPLIED = (
    "each tile has queries that see keys: the wait for their products has all lanes meet, and none reads shared memory "
    "behind it"
)

HEADS_ARE_EXCHANGED_FIRST = (
    "peers write what the last product reads once they have met this rank in the next call's exchange of heads, which "
    "its stream begins behind the product; of two ranks, groups are the world or one rank"
)

LENGTHS_COME_BEFORE = (
    "the thread that stores a length to a rank signals it the call's begin behind that, by a release, and the thread "
    "that reads the length has waited for it"
)

NO_EMPTY_PIECES = (
    "no piece of this exchange is empty at these sizes: a rank needs words of all others in every call, so that none "
    "can be two calls ahead, and nobody has to ask who has begun"
)

NEXT_OWNER = (
    "between an owner's place being stored and being read again the warp meets for another owner; one rank alone has "
    "no other"
)

WORLD_OF_TWO = (
    "of two ranks every group is the world, whose ranks need words of each other in every call: none can be two calls "
    "ahead, and nobody asks who has begun"
)

ATTENTION_LAYERS = ("RingAttentionTP", "UlyssesAttention")
WHOLE_EXCHANGES = ("UlyssesAllToAll", "UlyssesQKVGatherSeqScatterHeads")
HEAD_EXCHANGES = (
    *("CSOAttention", "GatedDeltaNetCP", "KimiDeltaAttention", "RingAttention", "RingAttentionBackwardDP"),
)
MLP_STEPS = ("DDP", "FSDPStep", "ZeRO1", "ZeRO2")
PRODUCTS_ALONE = (
    *("CombinedShardedGemms", "ContrastiveLoss", "RingAttentionPP", "RingAttentionTP", "TPMuon", "UlyssesAttention"),
)
FP8_EXCHANGES = ("FP8AllGatherParams", "FP8ReduceScatterGrads")

READ_BEFORE_STAGING = 'bulk_copy_cuda.h:69: "cp.async.bulk.wait_group.read %0;" -> ""'
AWAIT_STORES = 'bulk_copy_cuda.h:73: "cp.async.bulk.wait_group 0;" -> ""'
AWAIT_SUMS = 'gemm_sm90_ptx.h:129: "wgmma.wait_group.sync.aligned %0;" -> ""'

MOE_LAYERS = ("FusedMoE", "FusedMoELoRA", "MoEBalanced", "MoENarrow", "MoEWide")
ROUND_OF_COLUMNS = "thin_product_cuda.h:91: __syncthreads() -> ((void)0)"
NEXT_ROUND = "routing_cuda.h:119: __syncthreads() -> ((void)0)"
SIGNAL = "symm_cuda.h:39: st.release -> st.relaxed"
WAIT = "symm_cuda.h:48: ld.acquire -> ld.relaxed"
ARRIVING = "symm_cuda.h:162: __syncthreads() -> ((void)0)"
LEAVING = "symm_cuda.h:172: __syncthreads() -> ((void)0)"

END_WITH_A_BARRIER = (
    *FILTERED_LOG_PROBS,
    *("ContrastiveLoss", "MoEAllToAll", "MoEDispatch", "RingAttentionPP", "SphericalConvolution"),
    *("SAM3IoUSuppression", "TileParallelVAEDecode"),
)

LAST_READ = "teams_cuda.h:29: __syncthreads() -> ((void)0)"
BEFORE_COUNTING = "teams_cuda.h:101: __syncthreads() -> ((void)0)"
BEGUN_OF_ALL = "symm_cuda.h:140: __syncthreads() -> ((void)0)"
OF_LENGTHS = (
    "expert:75: comm.epoch",
    "expert:85: pkb::wait_tagged(boxes.box<pkb::TaggedPair>(comm, comm.rank, thread), tag)",
    *("tagged_cuda.h:39: sys -> gpu", "tagged_cuda.h:46: sys -> gpu"),
)
BACKWARD = "VocabParallelLogProbChunkedBackward"
CROSS_ENTROPY = "VocabParallelCrossEntropy"
SUMMARIES = (*FILTERED_LOG_PROBS, BACKWARD)

OF_PRODUCTS: Mapping[str, str] = {
    "symm_cuda.h:39: st.release -> st.relaxed": BETWEEN_KERNELS,
    "gemm_sm90_ptx.h:47: st.release -> st.relaxed": NOBODY_LOADS_IT,
    "gemm_sm90.h:251: __syncwarp() -> ((void)0)": ELECTED_ALONE,
    AWAIT_SUMS: WAIT_IS_INJECTED,
    READ_BEFORE_STAGING: ONE_TILE,
}
"""Of kernels whose products stand between others, with barriers of all ranks in kernels of their own."""

BY_THE_LETTER: Mapping[str, str] = {
    "symm_cuda.h:43: st.release -> st.relaxed": (
        "signal_begun() announces what the stream did before its kernel, which GPUs make visible to all; "
        '`race_check="strict"` alone asks for the release'
    )
}
"""Name of a mutant -> why it is right on GPUs, whichever kernel calls the operation."""

OF_ATTENTION: Mapping[str, str] = {
    "attention_cuda.h:83: __syncthreads() -> ((void)0)": ENTERS_WITHOUT_WAITING,
    "attention_cuda.h:89: __syncthreads() -> ((void)0)": BARRIER_IN_LEAVING,
    "attention_sm90.h:94: __syncwarp() -> ((void)0)": ELECTED_ALONE,
    "attention_sm90.h:331: __syncthreads() -> ((void)0)": BARRIER_IN_LEAVING,
}
"""Of kernels of attention, on CUDA cores and on tensor cores."""

AT_TINY: Mapping[tuple[str, str], str] = {
    **{(name, mutant): why for name in MOE_LAYERS for mutant, why in OF_PRODUCTS.items() if mutant != SIGNAL},
    **{(name, ROUND_OF_COLUMNS): OWN_SUMS for name in MOE_LAYERS if name != "FusedMoELoRA"},
    **{(name, SIGNAL): KERNELS_HAVE_ENDED for name in (*MOE_LAYERS, "MoECombine")},
    **{(name, NEXT_ROUND): ALL_TOKENS_AT_ONCE for name in (*MOE_LAYERS, "MoECombine", "MoEDispatch")},
    **{(name, "moe_layer_cuda.h:293: gemm::fence_async_global()"): FENCES_ON_BOTH_SIDES for name in MOE_LAYERS},
    **{(name, "moe_layer_cuda.h:338: gemm::fence_async_global()"): FENCES_ON_BOTH_SIDES for name in MOE_LAYERS},
    **{(name, LEAVING): KERNEL_ENDS for name in END_WITH_A_BARRIER},
    ("MoELoRAGroupGemmBackward", "expert:37: comm.wait_all_begun(1)"): GROUPS_OF_ONE,
    ("MoELoRAGroupGemmBackward", BEGUN_OF_ALL): GROUPS_OF_ONE,
    ("MoETokenPreprocess", "expert:86: comm.wait_all_begun(1)"): GROUPS_OF_ONE,
    ("MoETokenPreprocess", BEGUN_OF_ALL): GROUPS_OF_ONE,
    ("MoETokenPreprocess", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): GROUPS_OF_ONE,
    ("LoadBalancingLoss", LAST_READ): USED_ONCE,
    ("MoETokenPreprocess", LAST_READ): USED_ONCE,
    ("MoETokenPreprocess", BEFORE_COUNTING): THREAD_0_WROTE,
    ("MoELoRAGroupGemmBackward", "expert:130: comm.epoch % 2"): MEET_AT_END,
    ("AllGatherGemm", FENCE_BEFORE_FLAG): FENCES_ON_BOTH_SIDES,
    ("AllGatherGemm", FENCE_BEHIND_FLAG): FENCES_ON_BOTH_SIDES,
    **{(name, mutant): why for name in (*MLP_STEPS, "FSDPTensorParallel") for mutant, why in OF_PRODUCTS.items()},
    **{(name, "transpose_cuda.h:78: __syncthreads() -> ((void)0)"): ONE_TRANSPOSED for name in MLP_STEPS},
    **{(name, LAST_READ): USED_ONCE for name in ("ClipGradNorm", *FP8_EXCHANGES)},
    **{(name, BEFORE_COUNTING): THREAD_0_WROTE for name in ("ClipGradNorm", "ClipGradNormEP", *FP8_EXCHANGES)},
    **{(name, mutant): why for name in PRODUCTS_ALONE for mutant, why in OF_PRODUCTS.items() if mutant != SIGNAL},
    ("ContrastiveLoss", AWAIT_STORES): NO_BULK_STORES,
    ("ImportanceSamplingLoss", AWAIT_STORES): NO_BULK_STORES,
    ("ImportanceSamplingLoss", BEFORE_COUNTING): THREAD_0_WROTE,
    **{
        ("ImportanceSamplingLoss", mutant): why
        for mutant, why in OF_PRODUCTS.items()
        if mutant not in (SIGNAL, READ_BEFORE_STAGING)
    },
    ("ContrastiveLoss", LAST_READ): USED_ONCE,
    **{(name, mutant): why for name in ("CSOAttention", "RingAttention") for mutant, why in OF_ATTENTION.items()},
    **{(name, WAIT): WAITS_END_KERNELS for name in HEAD_EXCHANGES},
    **{(name, LEAVING): KERNEL_ENDS for name in HEAD_EXCHANGES},
    **{(name, mutant): why for name in ATTENTION_LAYERS for mutant, why in OF_ATTENTION.items()},
    ("TPMuon", "teams_cuda.h:66: __syncthreads() -> ((void)0)"): USED_ONCE,
    ("UlyssesAttention", "attention_cuda.h:89: __syncthreads() -> ((void)0)"): KERNEL_ENDS,
    ("UlyssesAttention", "attention_sm90.h:331: __syncthreads() -> ((void)0)"): KERNEL_ENDS,
    ("RingAttentionTP", "expert:79: comm.barrier()"): HEADS_ARE_EXCHANGED_FIRST,
    ("RingAttentionBackwardDP", "attention_backward_sm90.h:82: __syncwarp() -> ((void)0)"): ELECTED_ALONE,
    ("RingAttentionBackwardDP", "attention_backward_sm90.h:181: __syncwarp() -> ((void)0)"): LANES_HAVE_MULTIPLIED,
    ("RingAttentionBackwardDP", "attention_backward_sm90.h:213: __syncthreads() -> ((void)0)"): BARRIER_IN_LEAVING,
    ("RingAttentionBackwardDP", "attention_backward_cuda.h:82: __syncthreads() -> ((void)0)"): BARRIER_IN_LEAVING,
    ("RingAttentionPP", WAIT): WAITS_END_KERNELS,
    ("RingAttentionPP", BEGUN_OF_ALL): KERNEL_ENDS,
    ("RingAttentionPP", "attention_cuda.h:83: __syncthreads() -> ((void)0)"): ENTERS_WITHOUT_WAITING,
    ("RingAttentionPP", "attention_cuda.h:89: __syncthreads() -> ((void)0)"): BARRIER_IN_LEAVING,
    ("SinkhornKnopp", "expert:193: comm.signal_begun()"): WORLD_OF_TWO,
    ("SinkhornKnopp", "symm_cuda.h:43: sys -> gpu"): WORLD_OF_TWO,
    ("SinkhornKnopp", LAST_READ): ONE_ROW,
    **{("DistributedKNN", mutant): why for mutant, why in OF_PRODUCTS.items()},
    ("DistributedKNN", SIGNAL): KERNELS_HAVE_ENDED,
    ("DistributedKNN", WAIT): WAITS_END_KERNELS,
    ("KalmanFilterOptimizer", LAST_READ): USED_ONCE,
    ("LayerNormBackward", "norm_backward_cuda.h:138: __syncthreads() -> ((void)0)"): USED_ONCE,
    **{(name, LEAVING): KERNEL_ENDS for name in ("NeighborSampling", *RAGGED_EXCHANGES)},
    **{("GNNSparseFeatureFetch", mutant): why for mutant, why in OF_PRODUCTS.items() if mutant != SIGNAL},
    ("GNNSparseFeatureFetch", LEAVING): KERNEL_ENDS,
    ("GNNNegativeScoring", ARRIVING): BARRIER_BEFORE,
    ("GNNSparseEmbedding", WAIT): READ_BY_THE_NEXT_KERNEL,
    ("SampleSort", "expert:208: __syncthreads() -> ((void)0)"): ONE_OF_MERGED,
    ("SampleSort", "expert:253: __syncthreads() -> ((void)0)"): TWO_RUNS,
    ("GaussianSplatting", BEGUN_OF_ALL): BARRIER_BEHIND,
    ("TileParallelVAEDecode", WAIT): READ_BY_THE_NEXT_KERNEL,
    **{
        ("Conv3dAllReduce", mutant): ONE_CALL_ALONE
        for mutant in ("gemm_reduce.h:91: comm.epoch", "gemm_reduce.h:128: comm.epoch", "every epoch")
    },
    ("Conv3dAllReduce", READ_BEFORE_STAGING): ONE_TILE,
    ("Conv3dAllReduce", "gemm_sm90.h:251: __syncwarp() -> ((void)0)"): ELECTED_ALONE,
    ("Conv2dBoundaryExchange", READ_BEFORE_STAGING): ONE_TILE,
    ("Conv2dBoundaryExchange", "gemm_sm90_ptx.h:47: st.release -> st.relaxed"): NOBODY_LOADS_IT,
    ("Conv2dBoundaryExchange", "gemm_sm90.h:251: __syncwarp() -> ((void)0)"): ELECTED_ALONE,
    ("GNNSparseEmbedding", BEFORE_COUNTING): BARRIER_BEFORE,
    ("GNNSparseEmbedding", "partition_cuda.h:78: __syncthreads() -> ((void)0)"): PLACES_ARE_READ_LATER,
    ("KJTAllToAll", BEFORE_COUNTING): THREAD_0_WROTE,
    ("NeighborSampling", ARRIVING): BLOCKS_HAVE_MET,
    ("NeighborSampling", "grid_cuda.h:40: __syncthreads() -> ((void)0)"): BARRIER_BETWEEN,
    ("ClipGradNorm", BEGUN_OF_ALL): OWN_GROUP,
    ("ClipGradNorm", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): OWN_GROUP,
    ("ClipGradNorm", "clip_norm_cuda.h:74: __syncthreads() -> ((void)0)"): USED_ONCE,
    ("ClipGradNormEP", "symm_cuda.h:43: sys -> gpu"): POWERS_OF_ALL,
    **{(name, "filtered_log_prob_cuda.h:34: __syncthreads() -> ((void)0)"): ONE_ROW for name in FILTERED_LOG_PROBS},
    **{(name, "filtered_log_prob_cuda.h:36: __syncthreads() -> ((void)0)"): ONE_WARP for name in FILTERED_LOG_PROBS},
    **{(name, "filtered_log_prob_cuda.h:59: __syncwarp() -> ((void)0)"): ONE_TOKEN for name in FILTERED_LOG_PROBS},
    (CROSS_ENTROPY, "online_softmax_cuda.h:63: __syncthreads() -> ((void)0)"): ONE_ROW,
    (CROSS_ENTROPY, "expert:143: __syncthreads() -> ((void)0)"): ONE_ROW,
    (BACKWARD, BEGUN_OF_ALL): BARRIER_BEHIND,
    (BACKWARD, "expert:137: __syncthreads() -> ((void)0)"): ONE_ROW,
    **{(name, "select_cuda.h:260: __syncwarp() -> ((void)0)"): LANES_HAVE_READ for name in SUMMARIES},
    **{(name, "select_cuda.h:272: __syncwarp() -> ((void)0)"): LANES_HAVE_READ for name in SUMMARIES},
    (BACKWARD, "expert:179: __syncwarp() -> ((void)0)"): LANES_HAVE_READ,
    ("AllGatherGemm", "gemm_sm90_ptx.h:47: st.release -> st.relaxed"): NOBODY_LOADS_IT,
    ("AllGatherGemm", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("AllGatherGemm", READ_BEFORE_STAGING): ONE_TILE,
    ("CombinedShardedGemms", FENCE_BEFORE_FLAG): FENCES_ON_BOTH_SIDES,
    ("CombinedShardedGemms", FENCE_BEHIND_FLAG): FENCES_ON_BOTH_SIDES,
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
    ("GemvDecode", BEGUN_OF_ALL): BARRIER_BEHIND,
    ("GemvDecode", AWAIT_STORES): NO_BULK_STORES,
    ("GemvDecode", AWAIT_SUMS): WAIT_IS_INJECTED,
    ("GemvDecode", "gemm_sm90.h:251: __syncwarp() -> ((void)0)"): ELECTED_ALONE,
    **{("UlyssesAllGatherVariable", mutant): LENGTHS_COME_BEFORE for mutant in OF_LENGTHS},
    ("UlyssesAllGatherVariable", "exchange_cuda.h:86: comm.epoch % 2"): MEET_AT_END,
    ("UlyssesAllGatherVariable", BEGUN_OF_ALL): BARRIER_BEHIND,
    ("UlyssesAllGatherVariable", LEAVING): KERNEL_ENDS,
    **{(name, "reshard_cuda.h:182: comm.wait_all_begun(1)"): NO_EMPTY_PIECES for name in WHOLE_EXCHANGES},
    **{(name, BEGUN_OF_ALL): NO_EMPTY_PIECES for name in WHOLE_EXCHANGES},
    ("EmbeddingLookup", "expert:113: __syncwarp() -> ((void)0)"): NEXT_OWNER,
    ("HyenaCP", "teams_cuda.h:101: __syncthreads() -> ((void)0)"): BARRIER_BEFORE,
    ("SAM3IoUSuppression", "expert:359: ld.acquire -> ld.relaxed"): ONE_BLOCK,
    ("Gather", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): STORES_WAIT_FOR_A_LOAD,
    ("Scatter", "symm_cuda.h:48: ld.acquire -> ld.relaxed"): STORES_WAIT_FOR_A_LOAD,
    ("VocabParallelLogProb", "symm_cuda.h:162: __syncthreads() -> ((void)0)"): STORES_AND_SIGNALS,
    ("VocabParallelLogProbChunked", "symm_cuda.h:162: __syncthreads() -> ((void)0)"): STORES_AND_SIGNALS,
}
"""(Problem, name of a mutant) -> why it is right at the sizes at which it is judged on emulated GPUs."""
