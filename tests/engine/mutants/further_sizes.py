"""Sizes beside the named ones, at which kernels take their other paths.

A size is written as a named size or axes in JSON, with a dtype behind a slash where it is not the problem's first.
"""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.corpus.tasks import parse_axes

ON_CUDA_CORES = "tiny/float32"
"""Tensor cores take no float32."""

NO_ROOM_TO_GATHER = '{"M": 16384, "K": 1024, "N": 8}'
"""The output is so small beside a shard of A that scratch, which grows with all tensors of a call, holds no shard."""

LARGE_PRODUCT = '{"M": 2048, "K": 512, "N": 4096}'
"""Of at least as many tiles as there are multiprocessors."""

NO_ROOM_FOR_PRODUCTS = '{"M": 2048, "K": 64, "N": 4096}'
"""Factors are so small beside the product that scratch does not hold two halves of it."""

SHORT_FILTERS = '{"B": 1, "num_groups": 8, "group_dim": 1, "l": 8192, "Lf": 64, "with_zigzag_splitting": true}/float32'
"""Ranks share the work by time, not by channel: filters are much shorter than the sequence."""

MANY_LOGITS = '{"B": 1, "S": 16, "V": 65536, "top_k": 10, "top_p": 0.9}'
"""Whole shards of logits cost more than summaries of them."""

MANY_PARAMETERS = '{"p": 300000}'
"""More than is sent as tagged words."""

MANY_GRADIENTS = '{"rank": 64, "F_in": 1501, "F_out": 1703, "group": null}'
"""More gradients than are sent as tagged words."""

LONG_ROWS = '{"h": 1024, "rows_per_rank": 150}'
"""More rows than are sent as tagged words."""

LONG_SEQUENCE = '{"B": 2, "S": 256, "Hq": 8, "Hk": 2, "D": 64}'
"""More heads than are sent as tagged words."""

MANY_POSITIONS = '{"B": 2, "T": 65, "h": 24, "d": 96, "padding": 1}'
"""More positions than are sent as tagged words, of which the last is cut off."""

MANY_HEADS = '{"B": 2, "T": 131, "h": 12, "d": 96}'
"""More positions than are sent as tagged words, and padding behind them."""

MANY_LOGITS_IN_CHUNKS = '{"B": 1, "S": 16, "V": 65536, "top_k": 10, "top_p": 0.9, "chunk_size": 8}'

MANY_TOKENS = '{"T": 20, "h": 64, "Vl": 144, "V": null}'
"""More than CUDA cores take."""

MANY_LOGITS_OF_FEW_TOKENS = '{"T": 8, "h": 8, "Vl": 16500, "V": null}'
"""More than are sent as tagged words."""

LARGE_TERMS = '{"M": 2500, "N": 1000}'
"""More than are sent as tagged words."""

FURTHER_SIZES: Mapping[str, tuple[str, ...]] = {
    "AllGatherGemm": (ON_CUDA_CORES, NO_ROOM_TO_GATHER),
    "AllGatherGemmAT": (ON_CUDA_CORES, NO_ROOM_TO_GATHER),
    "AllReduce": (LARGE_TERMS,),
    "CombinedShardedGemms": (ON_CUDA_CORES,),
    "GemmAllGather": (ON_CUDA_CORES,),
    "GemmAllReduce": (ON_CUDA_CORES,),
    "GemmReduceScatter": (ON_CUDA_CORES, LARGE_PRODUCT, NO_ROOM_FOR_PRODUCTS),
    "GemvDecode": (MANY_TOKENS, MANY_LOGITS_OF_FEW_TOKENS),
    "HyenaCP": (SHORT_FILTERS,),
    "FP8AllGatherParams": (MANY_PARAMETERS,),
    "FP8ReduceScatterGrads": (MANY_PARAMETERS,),
    "FusedAdamAllGather": (MANY_PARAMETERS,),
    "MoELoRAGroupGemmBackward": (MANY_GRADIENTS,),
    "Reduce": (LARGE_TERMS,),
    "ReduceScatter": (LARGE_TERMS,),
    "ReduceScatterRMSNorm": (LONG_ROWS,),
    "RopeAllGather": (LONG_SEQUENCE,),
    "UlyssesGatherHeadsScatterSeq": (MANY_HEADS,),
    "UlyssesGatherSeqScatterHeads": (MANY_POSITIONS,),
    "UlyssesQKVGatherSeqScatterHeads": (MANY_POSITIONS,),
    "VocabParallelLogProb": (MANY_LOGITS,),
    "VocabParallelLogProbChunked": (MANY_LOGITS_IN_CHUNKS,),
    "VocabParallelLogProbChunkedBackward": (MANY_LOGITS_IN_CHUNKS,),
}
"""Problem -> sizes at which its GPU expert reaches operations that it reaches at no named size, on 2 ranks."""

EMULATED_SIZES: Mapping[str, tuple[str, ...]] = {
    # Their further sizes take minutes.
    **dict.fromkeys(("AllGatherGemm", "GemmAllGather", "GemmAllReduce", "GemmReduceScatter", "HyenaCP"), ()),
    # A block takes a row, not a warp: the operations among ranks are the same.
    "VocabParallelCrossEntropy": ('{"B": 1, "S": 10, "V": 20000}',),
    # On tensor cores.
    "Conv3dAllReduce": (
        '{"N": 1, "C": 8, "Co": 4, "size": [3, 3, 64], "kernel": [3, 3, 3], "stride": [1, 1, 1], '
        '"padding": [1, 1, 1], "dilation": [1, 1, 1], "groups": 1, "has_bias": true}',
    ),
    "Conv2dBoundaryExchange": (
        '{"B": 1, "C": 4, "Co": 4, "Hl": 4, "width": 64, "kh": 3, "kw": 3, "stride": 1, "padding": 1, '
        '"has_bias": true}',
    ),
    # Several blocks have work, and some of it in several rounds.
    "GNNFeatureExchangeBackward": (
        '{"rows": 100, "D": 128, "S": 64, "ragged": true, "requests": null, "seeds": null, "group": null}',
    ),
    "GNNNegativeScoring": ('{"base": 3000, "total": null, "K": 4, "counts": null, "special": false, "group": null}',),
    "KJTAllToAll": (
        '{"features": null, "B": 1500, "low": 0, "high": 1, "weighted": false, "variable": false, "stagger": 1, '
        '"pg": null}',
    ),
    "GNNSparseEmbedding": (
        '{"Z": 6000, "D": 8, "nodes": 1000, "ragged": true, "pairs": null, "negative": false, "group": null}',
    ),
    "GaussianSplatting": (
        '{"N": 600, "C": 17, "D": 3, "width": 64, "height": 64, "eps2d": 0.3, "near_plane": 0.01, "far_plane": 1e10}',
    ),
    "SampleSort": ('{"counts": 10000, "pattern": "normal"}',),
    "ImportanceSamplingLoss": (
        '{"T": 80, "H": 64, "V": 512, "ignore_index": -100, "common_weight": false, "clamped": "none", '
        '"undefined": false, "silent": []}',
    ),
    # On tensor cores, with two tiles for some blocks.
    "RingAttention": ('{"B": 1, "S": 70, "T": null, "h": 10, "d": 64, "causal": true, "softmax_scale": null}',),
    "RingAttentionBackwardDP": (
        '{"B": 1, "S": 70, "T": null, "h": 10, "d": 64, "G": null, "averaged": true, "causal": true, '
        '"softmax_scale": null}',
    ),
    # More than is sent as tagged words.
    "UlyssesAllGather": ('{"x_shape": [600, 256]}',),
    "UlyssesAllToAll": ('{"x_shape": [1024, 512], "scatter_dim": 0, "gather_dim": 1}',),
    # One rank has nothing to wait for, and may be ahead.
    "UlyssesGatherHeadsScatterSeq": (
        MANY_HEADS,
        '{"B": 2, "T": 1, "h": 8, "d": 128, "T_per_rank": 0, "heads": 0, "layout": "BThd"}',
    ),
    "UlyssesGatherSeqScatterHeads": (
        MANY_POSITIONS,
        '{"B": 2, "T": 1, "h": 16, "d": 128, "layout": "BThd", "padding": 1}',
    ),
    # Several blocks share a row.
    "SinkhornKnopp": ('{"b": 16, "K": 5000, "tau": 0.07, "I": 3, "samples": null, "group": null}',),
    # More rows than stages for a warp.
    "TPRMSNorm": ('{"M": 600, "n": 64, "eps": 1e-05}',),
    # On CUDA cores, in two steps.
    "DistributedKNN": (
        '{"Q": 8, "F": 20, "k": 10, "samples_per_rank": 64, "pool": 256, "fewest_samples": 64, "queries": null, '
        '"group": null}/float32',
    ),
    "QuantizedGradAllReduce": ('{"N": 5000, "B": 17}',),
    "NeighborSampling": (
        '{"N": 6000, "degrees": [0, 1, 2, 3, 4, 5, 6, 7, 8], "S": 4600, "fanouts": [1, 1], "owned": null, '
        '"seeds": null, "repeated": false, "ring": false, "replace": false, "group": null}',
    ),
}
"""Sizes beside tiny on emulated GPUs, where they are others than `FURTHER_SIZES`."""


def config_of(size: str) -> dict[str, object]:
    """Fields of `EvalConfig` that a size sets.

    Example:
        >>> config_of('{"M": 64}/float32')
        {'size': {'M': 64}, 'dtype': 'float32'}
        >>> config_of("tiny")
        {'size': 'tiny', 'dtype': None}
    """
    axes, _, dtype = size.partition("/")
    return {"size": parse_axes(axes), "dtype": dtype or None}
