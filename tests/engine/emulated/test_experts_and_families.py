"""Expert kernels for GPUs, one text of each CUDA family of the corpus, and starters, emulated: right, and no finding.

Sources of a group are compiled together. `make test` takes a sample of experts and starters; `make emulated` takes all,
compiles each by itself as well, and judges it with another seed.
"""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.kernels import CORPUS_FAMILIES, FAMILIES, find_family
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from pkb_gym.starters import make_starter
from tests.engine.compiling import compile_ahead
from tests.engine.emulated.compiled_together import Kernel, compile_together, joined
from tests.engine.mutants.further_sizes import FURTHER_SIZES
from tests.engine.mutants.further_sizes import config_of as config_of_size

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(3600),  # the first waits for all compiles
]


WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))
QUICK = ("AllReduce", "FusedAdamAllGather", "FP8AllGatherParams")
"""One expert of a kind: an exchange, an optimiser, narrow numbers. Examples of tests/kernels multiply matrices."""
EXPERTS = [
    problem.name
    for problem in catalogue()
    if expert_source(problem, "cu") is not None and (WHOLE or problem.name in QUICK)
]
OF_FAMILIES = [problem for problem, language in sorted(CORPUS_FAMILIES) if WHOLE and language == "cuda"]
"""Examples of tests/kernels, which are texts of families, stand for them."""
QUICK_STARTERS = ("RingAttentionBackwardDP", "ClipGradNormEP")
"""Of each kind: element by element, and from the problem's folder."""
STARTERS = [
    problem.name
    for problem in catalogue()
    if (problem.name in QUICK_STARTERS or WHOLE)
    and (problem.name, "cuda") not in FAMILIES
    and not make_starter(problem, "cuda", "cuda").why_python
]
NAMES = [
    *(f"expert {problem}" for problem in EXPERTS),
    *(f"family {problem}" for problem in OF_FAMILIES),
    *(f"starter {problem}" for problem in STARTERS),
]


@cache
def groups() -> dict[str, list[Kernel]]:
    """By the first word of their names; texts of families take seconds to write, which collecting does not need."""
    experts = [Kernel(f"expert {name}", name, expert_source(find_problem(name), "cu") or "") for name in EXPERTS]
    starters = [
        Kernel(f"starter {name}", name, make_starter(find_problem(name), "cuda", "cuda").source) for name in STARTERS
    ]
    return {"expert": experts, "family": [_of_family(problem) for problem in OF_FAMILIES], "starter": starters}


def _of_family(problem: str) -> Kernel:
    variant = random.Random(problem).choice(find_family(problem, "cuda").variants)
    return Kernel(f"family {problem}", problem, variant.source)


MOST_TOGETHER = 12
"""Kernels of a translation unit: the compiler may write files of a limited size, and takes long for large ones."""


def compiled_with(name: str) -> tuple[list[Kernel], int]:
    """The kernels that share a translation unit with one, and its place there."""
    group = groups()[name.split()[0]]
    at = [kernel.name for kernel in group].index(name)
    begin = at // MOST_TOGETHER * MOST_TOGETHER
    return group[begin : begin + MOST_TOGETHER], at - begin


def _sequence(positions: int, head: int, **others: object) -> str:
    """A size of RingAttention, or, with others of its axes, of its backward pass, of so many positions on each rank."""
    axes = {"B": 1, "S": positions, "T": None, "h": 2, "d": head, "causal": True, "softmax_scale": None}
    return json.dumps(axes | others)


def _stages(stages: int, samples: int, positions: int, width: int, head: int) -> str:
    """A size of RingAttentionPP, of so many samples and positions on each rank."""
    axes = {"B": samples, "S": positions, "T": None, "D": width, "D_out": width, "h": 2, "d": head, "stages": stages}
    return json.dumps(axes | {"pipeline": True, "causal": True, "softmax_scale": None})


def _ranges(ranges: int, slots: int, head: int) -> str:
    """A size of CSOAttention, of so many slots of each range on each rank."""
    axes = {"R": ranges, "m": slots, "c": None, "padding": 3, "Hq": 4, "Hk": 2, "D": head, "ranges": None}
    return json.dumps(axes | {"clip": "given"})


def _policy(tokens: int, width: int, ids: int) -> str:
    """A size of ImportanceSamplingLoss, of so many tokens on each rank."""
    axes = {"T": tokens, "H": width, "V": ids, "ignore_index": -100, "common_weight": False, "clamped": "none"}
    return json.dumps(axes | {"undefined": False, "silent": []})


def _pairs(batch: int, width: int) -> str:
    """A size of ContrastiveLoss, of so many images on each rank."""
    return json.dumps({"b": batch, "M": None, "D": width, "logit_scale": 10.0, "logit_bias": -10.0})


def _neighbours(queries: int, width: int, results: int, samples: int) -> str:
    """A size of DistributedKNN, of so many queries and samples on each rank."""
    axes = {"Q": queries, "F": width, "k": results, "samples_per_rank": samples, "pool": 0, "fewest_samples": 1}
    return json.dumps(axes | {"queries": None, "group": None})


def _filter(*blocks: int) -> str:
    """A size of KalmanFilterOptimizer, of such matrices on each rank."""
    axes = {"blocks": blocks, "blocks_by_rank": None, "kalman_lambda": 0.98, "kalman_nue": 0.9987}
    return json.dumps(axes | {"skew": 0.0})


def _scores(samples: int, prototypes: int) -> str:
    """A size of SinkhornKnopp, of so many samples on each rank."""
    return json.dumps({"b": samples, "K": prototypes, "tau": 0.07, "I": 3, "samples": None, "group": None})


def _layer(tokens: int, width: int, inner: int, experts: int, choices: int, **others: object) -> str:
    """A size of FusedMoE, or, with others of its axes, of FusedMoELoRA, of so many tokens on each rank."""
    axes = {"T": tokens, "H": width, "I": inner, "E": experts, "K": choices, "rows": None, "biased": True}
    return json.dumps(axes | {"idle_rank": None, "group": None} | others)


def _tokens(tokens: int, width: int, experts: int, choices: int) -> str:
    """A size of MoEDispatch and MoECombine, of so many tokens on each rank."""
    axes = {"T": tokens, "H": width, "E": experts, "K": choices, "rows": None, "routing": None, "group": None}
    return json.dumps(axes)


def _logits(experts: int, choices: int, mask: str) -> str:
    """A size of LoadBalancingLoss."""
    axes = {"L": 2, "batch": 3, "seq": 7, "E": experts, "k": choices, "plain": False, "masked": True}
    return json.dumps(axes | {"mask_dtype": mask})


def _slots(experts: int, slots: int, tokens: int) -> str:
    """A size of MoETokenPreprocess."""
    axes = {"E": experts, "K": slots, "T": tokens, "rows": None, "distinct": False, "idle": False, "group": None}
    return json.dumps(axes)


def _rows(samples: int, channels: int, filters: int) -> str:
    """A size of Conv2dBoundaryExchange, of so many samples, channels and filters, for tensor cores."""
    axes = {"B": samples, "C": channels, "Co": filters, "Hl": 3, "width": 64}
    return json.dumps(axes | {"kh": 3, "kw": 3, "stride": 1, "padding": 1, "has_bias": True})


def _image(height: int, width: int) -> str:
    """A size of DistributedRFFT, of an image of so many rows and columns."""
    axes = {"B": 1, "H": height, "width": width, "n0": None, "n1": None, "norm": "ortho", "layout": "bhw"}
    return json.dumps(axes)


def _spectrum(rows: int, columns: int) -> str:
    """A size of DistributedIRFFT, of an image of so many rows and columns."""
    axes = {"B": 1, "C": 1, "H": rows, "Wc": columns // 2 + 1, "n0": rows, "n1": columns}
    return json.dumps(axes | {"norm": "ortho", "layout": "bchw"})


def _gaussians(number: int) -> str:
    """A size of GaussianSplatting, of so many Gaussians on each rank."""
    axes = {"N": number, "C": 1, "D": 3, "width": 64, "height": 64}
    return json.dumps(axes | {"eps2d": 0.3, "near_plane": 0.01, "far_plane": 1e10})


def _sphere(channels: int, longitudes: int) -> str:
    """A size of SphericalConvolution, of so many channels in and out, and longitudes."""
    axes = {"A": None, "B": 1, "Cin": channels, "Cout": channels, "groups": 1, "K": 2, "nlat_in": 4, "nlat_out": 4}
    return json.dumps(axes | {"nlon_in": longitudes, "nlon_out": longitudes, "per_row": 2, "has_bias": True})


def _tiles(channels: int, up: int) -> str:
    """A size of TileParallelVAEDecode, of so many channels, and pixels of a cell along h and w."""
    axes = {"B": 1, "C": channels, "T": 3, "H": 7, "width": 7, "tile_length": 2, "tile_height": 4, "tile_width": 4}
    axes |= {"spatial_upsample": up, "temporal_upsample": 2, "sr_ratio": 1, "first_frame_as_image": False}
    return json.dumps(axes | {"spatial_overlap": 0.25, "temporal_overlap": 0.5})


def _exchanged(**axes: object) -> str:
    """A size of GNNFeatureExchange or its backward pass, of a few hundred rows."""
    return json.dumps({"rows": 300, "ragged": True, "requests": None, "seeds": None, "group": None} | axes)


def _looked_up(depth: int, width: int) -> str:
    """A size of GNNSparseFeatureFetch, of rows and results of so many elements."""
    axes = {"T": 250, "most_rows": None, "D": depth, "O": width, "Q": 40, "more_by_rank": 1}
    return json.dumps(axes | {"law": "uniform", "queries": None, "group": None})


RARE_SIZES = {
    "CSOAttention": (_ranges(2, 70, 64), _ranges(3, 34, 128) + "/float16"),
    "BlockedFP8Dequantize": ('{"M": 3, "N": 14, "block_size": 2, "y_dtype": "float8_e4m3fn", "s_dtype": "float32"}',),
    "BlockedFP8Quantize": ('{"M": 3, "N": 24, "block_size": 8}', '{"M": 1, "N": 2048, "block_size": 1024}/float32'),
    "CombinedShardedGemms": ('{"M": 10, "H": 12, "F": 20, "H2": 14}',),
    "Conv2dBoundaryExchange": (_rows(2, 4, 4), _rows(1, 70, 130) + "/float16", "tiny/float32"),
    "Conv3dAllReduce": ('{"N": 1, "C": 8, "Co": 8, "size": [3, 4, 130]}', "tiny/float32"),
    "ContrastiveLoss": ("tiny/float32", _pairs(9, 20) + "/float16", _pairs(300, 64)),
    "DDP": ('{"n": 11, "batch": null, "d_in": 20, "hid": 36, "d_out": 14}',),
    "DistributedKNN": ("tiny/float32", _neighbours(130, 16, 10, 64), _neighbours(5, 20, 70, 70) + "/float16"),
    "DistributedIRFFT": (_spectrum(96, 180), _spectrum(1440, 6)),
    "DistributedRFFT": (_image(1440, 4), _image(4, 2048)),
    "EmbeddingLookup": ('{"Vs": 5, "E": 13, "L": 900, "lengths": null, "law": "uniform"}',),
    "FusedMoE": (_layer(50, 45, 13, 6, 3), _layer(700, 64, 1500, 4, 2)),
    "FusedMoELoRA": (_layer(50, 72, 44, 40, 3, rank=11),),
    "FP8AllGatherParams": ('{"p": 1003}',),
    "FP8ReduceScatterGrads": ('{"p": 1003}',),
    "FSDPStep": ('{"n": 11, "batch": null, "d_in": 20, "hid": 36, "d_out": 14}',),
    "FSDPTensorParallel": ('{"D": 20, "F": 36, "rows": 24}',),
    "FusedAdamAllGather": ('{"p": 1001}',),
    "GaussianSplatting": (_gaussians(2100),),
    "GemvDecode": ('{"T": 3, "h": 13, "Vl": 7, "V": null}', '{"T": 20, "h": 64, "Vl": 135, "V": null}/float16'),
    "GatedDeltaNetCP": (
        '{"B": 1, "L": 11, "Hq": 2, "Hv": 4, "heads": null, "K": 40, "D": 36}',
        '{"B": 1, "L": 5, "Hq": 2, "Hv": 2, "heads": null, "K": 200, "D": 20}/float16',
    ),
    "GNNFeatureExchange": (_exchanged(row=[3], S=24) + "/float32",),
    "GNNFeatureExchangeBackward": (_exchanged(D=13, S=40), "tiny/float64"),
    "GNNNegativeScoring": ('{"base": 30, "total": null, "K": 104, "counts": null, "special": false, "group": null}',),
    "GNNSparseEmbedding": (
        '{"Z": 700, "D": 13, "nodes": 100, "ragged": true, "pairs": null, "negative": false, "group": null}/float16',
    ),
    "GNNSparseFeatureFetch": (_looked_up(64, 48) + "/float32", _looked_up(30, 21)),
    "HyenaConv1d": ('{"B": 1, "H": 3, "l": 8204, "K": 100}', '{"B": 1, "H": 3, "l": 8208, "K": 5}/float16'),
    "GradAccLoss": ("tiny/float32",),
    "ImportanceSamplingLoss": ("tiny/float32", _policy(40, 20, 5000), _policy(300, 64, 3000)),
    "KalmanFilterOptimizer": (_filter(67, 130, 1), _filter(*range(1, 18))),
    "KJTAllToAll": (
        '{"features": 5, "B": 600, "low": 0, "high": 5, "weighted": false, "variable": false, "stagger": 1, '
        '"pg": null}',
    ),
    "KimiDeltaAttention": ('{"B": 1, "L": 11, "H": 3, "K": 40, "D": 20, "P": null}/float16',),
    "LayerNormBackward": (
        '{"B": 70, "H": 13, "whole": false}',
        '{"B": 300, "H": 600, "whole": false}/float32',
        '{"B": 300, "H": 300, "whole": false}/float64',
    ),
    "LoadBalancingLoss": (_logits(40, 3, "bool") + "/float16", _logits(150, 9, "int64") + "/float32"),
    "MoEAllToAll": ('{"T": 60, "H": 13, "ragged": true, "pieces": null, "explicit": true, "group": null}/float16',),
    "MoECombine": (_tokens(70, 13, 12, 3) + "/float16", "tiny/float64"),
    "MoEDispatch": (_tokens(70, 13, 12, 3) + "/float16", "tiny/float64"),
    "MoELoRAGroupGemmBackward": ("tiny/float64",),
    "MoETokenPreprocess": (_slots(96, 3, 301) + "/float64",),
    "QuantizedGradAllReduce": ('{"N": 1003, "B": 12}', '{"N": 300000, "B": 128}', '{"N": 100000, "B": 64}/float32'),
    "ReduceScatterRMSNorm": ('{"h": 13, "rows_per_rank": 11}', '{"h": 8201, "rows_per_rank": 19}/float16'),
    "NeighborSampling": (
        '{"N": 3000, "degrees": [0, 1, 2, 3, 4, 5], "S": 900, "fanouts": [4, 2], "owned": null, "seeds": null, '
        '"repeated": false, "ring": false, "replace": false, "group": null}',
    ),
    "RingAttentionPP": (
        _stages(1, 1, 70, 64, 64),
        _stages(2, 1, 20, 20, 6),
        _stages(2, 2, 130, 64, 128) + "/float16",
        "tiny/float32",
    ),
    "RingAttention": (_sequence(160, 64), _sequence(130, 128) + "/float16"),
    "RingAttentionBackwardDP": (
        _sequence(100, 64, G=1, averaged=True),
        _sequence(70, 128, G=None, averaged=True) + "/float16",
    ),
    "RopeAllGather": ('{"B": 2, "S": 18, "Hq": 3, "Hk": 1, "D": 12}/float16',),
    "SampleSort": (
        '{"counts": 12000, "pattern": "normal"}/float32',
        '{"counts": 9000, "pattern": "duplicates"}/float16',
        '{"counts": 9000, "pattern": "special"}/float64',
    ),
    "SphericalConvolution": (_sphere(40, 70), _sphere(7, 33)),
    "TileParallelVAEDecode": (_tiles(3, 8) + "/float16", _tiles(5, 3) + "/float32"),
    "UlyssesAllGatherVariable": ('{"lengths": [5, 0, 9, 3, 7, 1, 4, 2], "rest": [3], "gather_dim": 0}',),
    "UlyssesAllToAll": ('{"x_shape": [384, 1536]}',),
    "UlyssesAttention": ('{"B": 1, "S": 2, "T": null, "H": 64, "h": 8, "d": 130, "D_out": 40}',),
    "SinkhornKnopp": (_scores(9, 13) + "/float16", _scores(9, 8200), _scores(40, 4104) + "/bfloat16"),
    "TPMuon": ('{"m": 41, "n": null, "n_r": 13}', "tiny/float32"),
    "TPRMSNorm": (
        '{"M": 140, "n": 8192, "eps": 1e-5}',
        '{"M": 3, "n": 64000, "eps": 1e-5}',
        '{"M": 9, "n": 13, "eps": 1e-5}/float16',
    ),
    "VocabParallelCrossEntropy": ('{"B": 1, "S": 10, "V": 514}', '{"B": 1, "S": 300, "V": 20000}/float16'),
    "VocabParallelLogProbChunkedBackward": ('{"B": 1, "S": 6, "V": 150, "top_k": 5, "top_p": 0.9, "chunk_size": 2}',),
    "ZeRO2": ('{"n": 11, "batch": null, "d_in": 20, "hid": 36, "d_out": 14}',),
}
"""No multiples of a vector, rows longer than registers hold, or paths that only larger sizes take."""

FEW_CALLS = {"expert HyenaCP": 5}
"""Calls of kernels that execute more than a million instructions of warps in each: two together, and three under
another policy."""


def config_of(seed: int = 0, trials: int = 14) -> EvalConfig:
    """On the fewest ranks that have peers."""
    return EvalConfig(
        device="emulated",
        size="tiny",
        world_size=2,
        trials=trials,
        seed=seed,
        race_check="on",
        compile_timeout_s=600.0,
        timeout_s=300.0,
    )


def assert_right(evaluator: LocalEvaluator, kernel: Kernel, source: str, config: EvalConfig) -> None:
    feedback = evaluator.evaluate(find_problem(kernel.problem), source, config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.output}"
    assert feedback.emulation is not None and feedback.emulation.findings == ()


@pytest.fixture(scope="module")
def together(compiled_before: Path) -> None:
    """All of them; the tests find them in the cache."""
    for group in groups().values():
        for kernel in group[::MOST_TOGETHER]:
            compile_together(compiled_with(kernel.name)[0], CompileCache.in_folder(compiled_before))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_right_and_has_no_finding(name: str, local_evaluator: LocalEvaluator) -> None:
    group, place = compiled_with(name)
    config = config_of(trials=FEW_CALLS.get(name, 14))
    assert_right(local_evaluator, group[place], joined(group, place), config)


MOVERS = (
    *("AllReduce", "Reduce", "ReduceScatter", "AllGather", "Broadcast", "Scatter", "Gather", "AllToAll"),
    *("UlyssesAllGather", "UlyssesAllToAll", "UlyssesGatherSeqScatterHeads", "UlyssesGatherHeadsScatterSeq"),
    *("UlyssesQKVGatherSeqScatterHeads", "MoEAllToAll"),
)
"""Where one rank's result is its own tensor."""


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", [name for name in EXPERTS if name in MOVERS])
def test_one_rank_has_its_tensor_copied_by_the_driver(name: str, local_evaluator: LocalEvaluator) -> None:
    group, place = compiled_with(f"expert {name}")
    config = config_of(trials=3).model_copy(update={"world_size": 1})
    feedback = local_evaluator.evaluate(find_problem(name), joined(group, place), config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.output}"
    assert feedback.emulation is not None and feedback.emulation.warp_instructions == 0


LARGE_PRODUCTS = ("AllGatherGemm", "AllGatherGemmAT", "GemmAllGather", "GemmAllReduce", "GemmReduceScatter", "HyenaCP")
"""Their further sizes take minutes here."""
OTHER_SIZES = [
    (name, size)
    for name in EXPERTS
    if name not in LARGE_PRODUCTS
    for size in (*FURTHER_SIZES.get(name, ()), *RARE_SIZES.get(name, ()))
]


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize(("name", "size"), OTHER_SIZES)
def test_it_takes_its_other_paths(name: str, size: str, local_evaluator: LocalEvaluator) -> None:
    """Three calls: two together, and one under another policy."""
    group, place = compiled_with(f"expert {name}")
    config = config_of(trials=3).model_copy(update=config_of_size(size))
    assert_right(local_evaluator, group[place], joined(group, place), config)


@pytest.fixture(scope="module")
def alone(local_evaluator: LocalEvaluator) -> None:
    """All of them, side by side; the tests find them in the cache."""
    work = [(find_problem(each.problem), each.source, config_of()) for group in groups().values() for each in group]
    compile_ahead(local_evaluator, work, threads=os.cpu_count() or 2)


@pytest.mark.skipif(not WHOLE, reason="takes minutes: run it by `make emulated`")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", NAMES)
def test_it_is_right_as_its_own_source(name: str, local_evaluator: LocalEvaluator) -> None:
    group, place = compiled_with(name)
    assert_right(local_evaluator, group[place], group[place].source, config_of(seed=1))
