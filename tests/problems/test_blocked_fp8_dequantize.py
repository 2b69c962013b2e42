"""BlockedFP8Dequantize against single elements in exact arithmetic; dtypes, empty chunks, cost."""

from fractions import Fraction

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "BlockedFP8Dequantize"


def element(run: Run, rank: int, source: int, row: int, column: int) -> float:
    """out[source, row, column] of a rank, exact; a float64 holds every product of two floats."""
    ax, args = run.axes[rank], run.args[source]
    value = Fraction(args["local_y"][rank, row, column].item())
    scale = Fraction(args["local_s"][rank, (row * ax.N + column) // ax.block_size].item())
    return float(value * scale)


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (2, 2), (4, 3), (2, 4)])
def test_matches_exact_products(world_size: int, trial: int, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol)
    run.assert_passes_own_checks()
    for rank in range(world_size):
        expected = [[[element(run, rank, j, m, n) for n in range(192)] for m in range(4)] for j in range(world_size)]
        assert torch.equal(run.outputs[rank]["out"], torch.tensor(expected, dtype=torch.float64).float())


def test_near_misses_are_refused() -> None:
    run = run_reference(NAME, world_size=2)
    out = run.outputs[0]["out"]
    ulp = torch.nextafter(out, torch.full_like(out, torch.inf))
    one_off = torch.where(torch.arange(out.numel()).view(out.shape) == 700, ulp, out)
    assert run.wrong(0, "out", one_off).sum() == 1
    for wrong in (out.flip(0), out * 1.02, out.bfloat16().float(), out[:, [1, 0, 2, 3]], torch.zeros_like(out)):
        assert run.wrong(0, "out", wrong).any()


def test_empty_chunks() -> None:
    run = run_reference(NAME, world_size=2, size={"M": 0, "N": 192})
    assert run.outputs[1]["out"].shape == (2, 0, 192)


def test_nan_codes_and_infinite_scales_follow_ordinary_arithmetic() -> None:
    y = torch.full((2, 1, 32), 2.0)
    y[0, 0, 3], y[0, 0, 16] = float("nan"), 0.0
    s = torch.tensor([[1.0, float("inf")], [3.0, 3.0]])
    size = {"M": 1, "N": 32, "block_size": 16, "y_dtype": "float8_e4m3fn", "s_dtype": "float32"}
    run = run_reference(NAME, world_size=2, size=size, args=[{"local_y": y.to(torch.float8_e4m3fn), "local_s": s}] * 2)
    out = run.outputs[0]["out"][1, 0]
    assert out.isnan().nonzero().flatten().tolist() == [3, 16]
    assert out[:3].tolist() == [2.0] * 3 and out[17:].isposinf().all()
    run.assert_passes_own_checks()


def test_dtypes_sizes_and_cost() -> None:
    problem = find_problem(NAME)
    pairs = {(ax["y_dtype"], ax["s_dtype"]) for ax in (make_axes(problem, trial=trial)[0] for trial in range(5))}
    assert len(pairs) == 5
    assert make_axes(problem, size="published", trial=3, timed=True)[0]["y_dtype"] == "bfloat16"
    with pytest.raises(SizeError, match=r"M\*N = 3\*100 = 300 must be a multiple of block_size=128"):
        problem.axes(size={"M": 3, "N": 100}, world_size=2, rank=0)
    with pytest.raises(SizeError, match="axis y_dtype='int4' must be one of"):
        run_reference(NAME, world_size=1, size={"y_dtype": "int4"})
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.vector_flops, least.memory_bytes) == (4_194_304, 25_231_360)
    assert least.link_in_bytes == least.link_out_bytes == 6_340_608
    codes = {"y_dtype": "float8_e4m3fn", "s_dtype": "float32"}
    least = problem.cost(problem.axes(size=codes, world_size=4, rank=0))
    assert (least.memory_bytes, least.link_in_bytes) == (21_102_592, 3_244_032)
