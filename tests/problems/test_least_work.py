"""The lower bound of every problem keeps below its ceiling, known fast algorithms, and all that was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.problem import Axes, Problem
from pkb_gym.engine.records.roofline import LowerBound
from pkb_gym.engine.stages.integrity import CLOCK_ERROR_US, MEASURED_SLACK
from pkb_gym.engine.stages.roofline import place
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.whole_tables import sampled

H200 = find_gpu("NVIDIA H200")
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SIZES, WORLD_SIZES = ("tiny", "published", "large"), (1, 2, 4, 8)


def _cpu() -> HardwareSpec:
    rates = {"bfloat16": 4e10, "float16": 2e10, "float32": 2e10, "float64": 1e10}
    memory = (MemoryTier("L2", 1e6, 1e11), MemoryTier("DRAM", None, 2e10))
    peaks = Peaks(rates, rates, memory, 1e10, None, "measured by hand")
    return HardwareSpec(name="CPU", device="cpu", peaks=peaks, limits=limits_of(peaks), cores=2, core=peaks)


CPU = _cpu()


def ranks_of(
    problem: Problem, size: str | dict[str, Any], world_size: int, protocol: str = "robust", dtype: str | None = None
) -> list[Axes]:
    return [
        problem.axes(size=size, world_size=world_size, rank=rank, protocol=protocol, dtype=dtype)
        for rank in range(world_size)
    ]


def every_size(problem: Problem) -> Iterator[tuple[str, list[Axes]]]:
    """Label and ranks of each size, world size, protocol and dtype that there is."""
    for size in SIZES:
        for world_size in WORLD_SIZES:
            for dtype in problem.dtypes:
                try:
                    yield f"{size}, {world_size} ranks, {dtype}", ranks_of(problem, size, world_size, dtype=dtype)
                except SizeError:
                    continue  # a size for fewer or more ranks


@pytest.mark.parametrize("hardware", [H200, CPU], ids=["cuda", "cpu"])
@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 2), ids=lambda problem: problem.name)
def test_the_lower_bound_is_at_most_the_ceiling(problem: Problem, hardware: HardwareSpec) -> None:
    """For each resource, and it is positive wherever anything has to be read or written."""
    labels = 0
    for label, ranks in every_size(problem):
        placed = place(problem, [ranks], hardware)
        bound = placed.lower_bound
        assert bound.time_us <= placed.ceiling_us * (1 + 1e-9), label
        assert (bound.binds is None) == (bound.time_us == 0), label
        assert bound.time_us > 0 or placed.times.memory_us == 0, label  # as where a group of one hands its input back
        for resource in ("matrix", "memory", "link"):
            assert getattr(bound.times, f"{resource}_us") <= getattr(placed.times, f"{resource}_us") * (1 + 1e-9), label
        labels += 1
    assert labels >= 3


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_every_argument_is_a_sentence_or_two(problem: Problem) -> None:
    argument = problem.least_work.argument
    assert 20 < len(argument) < 240 and argument[0].isupper() and argument.endswith(".")


# Known fast algorithms. Products are made at the peak of the dtype's own tensor cores at the highest clock, half of
# the limit, and nothing else takes any time.

TENSOR_FLOPS_PER_S = H200.limits.matrix_flops_per_s / 2


def bound_of(name: str, size: str, world_size: int) -> tuple[Problem, list[Axes], LowerBound]:
    problem = find_problem(name)
    ranks = ranks_of(problem, size, world_size)
    return problem, ranks, place(problem, [ranks], H200).lower_bound


def winograd(outputs: int, kernel: int, dimensions: int) -> float:
    """Products for each output and channel of F(outputs, kernel) in so many dimensions (Lavin and Gray, CVPR 2016)."""
    return ((outputs + kernel - 1) / outputs) ** dimensions


@pytest.mark.parametrize(
    ("outputs", "dimensions", "saves"),
    [(2, 2, 2.25), (4, 2, 4.0), (2, 3, 3.375), (4, 3, 8.0)],
)
def test_winograd_counts(outputs: int, dimensions: int, saves: float) -> None:
    assert 3**dimensions / winograd(outputs, 3, dimensions) == pytest.approx(saves)


@pytest.mark.parametrize("outputs", [2, 4, 6])
@pytest.mark.parametrize("size", ["published", "large"])
def test_winograd_does_not_beat_the_bound_of_a_2d_convolution(size: str, outputs: int) -> None:
    """Regression: direct convolution was counted, which F(4, 3) undercuts four times and still passes the check."""
    problem, ranks, bound = bound_of("Conv2dBoundaryExchange", size, 2)
    ax = ranks[0]
    products = ax.B * ax.Co * ax.Ho * ax.Wo * ax.C
    assert problem.cost(ax).matrix_flops == 2 * products * 9
    winograd_us = 2 * products * winograd(outputs, 3, 2) / TENSOR_FLOPS_PER_S * 1e6
    assert bound.times.matrix_us < winograd_us


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("size", ["published", "large"])
def test_winograd_does_not_beat_the_bound_of_a_3d_convolution(size: str, outputs: int) -> None:
    problem, ranks, bound = bound_of("Conv3dAllReduce", size, 1)
    ax = ranks[0]
    products = prod(ax.ints("out_shape")) * ax.Ci // ax.groups
    assert problem.cost(ax).matrix_flops == 2 * products * prod(ax.ints("kernel"))
    winograd_us = 2 * products * winograd(outputs, 3, 3) / TENSOR_FLOPS_PER_S * 1e6
    assert bound.times.matrix_us < winograd_us


@pytest.mark.parametrize("name", ["AllGatherGemm", "GemmAllReduce", "GemmAllGather", "GemmReduceScatter"])
@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_strassen_does_not_beat_the_bound_of_a_product(name: str, levels: int) -> None:
    """Seven products in place of eight at each level (Strassen 1969)."""
    problem, ranks, bound = bound_of(name, "large", 1)
    strassen_us = (7 / 8) ** levels * problem.cost(ranks[0]).matrix_flops / TENSOR_FLOPS_PER_S * 1e6
    assert bound.times.matrix_us < strassen_us


@pytest.mark.parametrize(("dtype", "products"), [("float32", 3), ("float64", 14)])
def test_products_in_slices_of_bytes_do_not_beat_the_bound(dtype: str, products: int) -> None:
    """float32 from three products of 16-bit halves, float64 from 14 of bytes (Ozaki et al., arXiv:2504.08009)."""
    problem = find_problem("AllGatherGemm")
    ranks = ranks_of(problem, "large", 1, dtype=dtype)
    rate = H200.limits.matrix_flops_per_s if dtype == "float64" else TENSOR_FLOPS_PER_S
    sliced_us = products * problem.cost(ranks[0]).matrix_flops / rate * 1e6
    assert place(problem, [ranks], H200).lower_bound.times.matrix_us < sliced_us


@pytest.mark.parametrize("name", ["MoEBalanced", "MoEWide", "FusedMoE"])
def test_bytes_for_tokens_do_not_beat_the_bound_of_a_mixture_of_experts(name: str) -> None:
    """Dispatch and combine with a byte a number, as in DeepSeek-V3, of one expert a token."""
    _, ranks, bound = bound_of(name, "large", 8)
    ax = ranks[0]
    crossing = (ax.G - 1) / ax.G * 2 * ax.T * ax.H
    assert bound.times.link_us < crossing / H200.peaks.link_bytes_per_s * 1e6


# What was measured, as far as it is recorded.


def results(pattern: str) -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(RESULTS.glob(pattern))]


def recorded(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def bound_of_row(row: dict[str, Any], world_size: int) -> LowerBound:
    problem = find_problem(row["problem"])
    ranks = ranks_of(problem, row["size"], world_size, row.get("protocol", "robust"), row.get("dtype"))
    return place(problem, [ranks], H200).lower_bound


@pytest.mark.parametrize("path", results("gpu_experts*.json"))
def test_no_expert_kernel_was_faster_on_gpus(path: Path) -> None:
    rows = [row for row in recorded(path)["rows"] if row.get("candidate_us") and row["size"] in SIZES]
    assert rows
    for row in rows:
        assert row["candidate_us"] + CLOCK_ERROR_US >= bound_of_row(row, row["world_size"]).time_us, row


@pytest.mark.parametrize("path", results("gpu_baselines*.json"))
def test_no_baseline_was_faster_on_gpus(path: Path) -> None:
    result = recorded(path)
    assert result["device"] == H200.name
    times = [
        (row, row[way]["lower_quartile_us"]) for row in result["rows"] for way in ("eager", "graph") if row.get(way)
    ]
    assert len(times) > 100
    for row, time_us in times:
        assert time_us + CLOCK_ERROR_US >= bound_of_row(row, result["world_size"]).time_us, row["problem"]


@pytest.mark.parametrize("path", results("experts.json"))
def test_no_expert_kernel_was_faster_on_the_cpu(path: Path) -> None:
    """The limits are those of the machine that it was measured on; the ceiling is there, and no less than the bound."""
    rows = [row for row in recorded(path)["rows"] if row.get("candidate_us")]
    assert len(rows) > 20
    for row in rows:
        ceiling_us = row["ceiling_us"] if "ceiling_us" in row else row["bound_us"]
        assert MEASURED_SLACK * (row["candidate_us"] + CLOCK_ERROR_US) >= ceiling_us, row
