"""BlockedFP8Quantize against a table of all 8-bit floats in float64; legal divisions, near misses, edge cases."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "BlockedFP8Quantize"
MAGNITUDES = torch.tensor(
    [(c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) for c in range(127)],
    dtype=torch.float64,
)
"""Value of codes 0x00 .. 0x7E: three bits of fraction, bias 7."""


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Codes (uint8) of float64 values, ties to the even code."""
    above = torch.searchsorted(MAGNITUDES, x.abs().contiguous()).clamp(1, 126)
    low, high = x.abs() - MAGNITUDES[above - 1], MAGNITUDES[above] - x.abs()
    code = torch.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return (code + 128 * (x < 0)).to(torch.uint8)


def oracle(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the whole tensor, in float64."""
    b = run.axes[0].block_size
    x = torch.cat([args["local_tensor"] for args in run.args]).double()
    scales = torch.stack([block.abs().amax(1) / 448 for block in x.split(b, dim=1)], dim=1)
    divisor = scales.repeat_interleave(b, dim=1)
    return nearest(torch.where(divisor > 0, x / divisor, 0.0)), scales.float()


def codes(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial", "dtype"), [(1, 0, "bfloat16"), (2, 1, "float32"), (4, 3, "float16")])
def test_matches_the_table_of_codes(world_size: int, trial: int, dtype: str, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype=dtype)
    y, s = oracle(run)
    robust = Run(run.problem, run.axes, run.args, run.outputs)
    for rank in range(world_size):
        assert not robust.wrong(rank, "y_global", codes(y)).any()
        assert not robust.wrong(rank, "s_global", s).any()
    robust.assert_passes_own_checks()
    run.assert_passes_own_checks()


def test_robust_blocks_are_zero_outlying_or_of_any_scale() -> None:
    run = run_reference(NAME, world_size=2)
    s = run.outputs[0]["s_global"]
    assert (s == 0).sum() >= 2
    assert s[s > 0].max() / s[s > 0].min() > 100
    y = run.outputs[0]["y_global"].float().abs().unflatten(1, (-1, 128))
    assert (y.median(dim=-1).values[s > 0] < 8).any()  # an outlier leaves little for the others


def test_other_legal_divisions_pass() -> None:
    run = run_reference(NAME, world_size=2, size={"M": 64, "N": 512}, protocol="published")
    run = Run(run.problem, run.axes, run.args, run.outputs)
    x = torch.cat([args["local_tensor"] for args in run.args]).float().unflatten(1, (-1, 128))
    largest = x.abs().amax(-1, keepdim=True)
    other = (x * (448 / largest)).to(torch.float8_e4m3fn).flatten(1)
    different = (other.view(torch.uint8) != run.outputs[0]["y_global"].view(torch.uint8)).sum()
    assert 0 < different < 0.01 * x.numel()
    assert not run.wrong(1, "y_global", other).any()
    assert not run.wrong(1, "s_global", (largest * (1 / 448)).squeeze(-1)).any()


@pytest.mark.parametrize("trial", [0, 1])
def test_near_misses_are_refused(trial: int) -> None:
    run = run_reference(NAME, world_size=2, trial=trial)
    y, s = run.outputs[0]["y_global"].view(torch.uint8), run.outputs[0]["s_global"]
    place = tuple((s == s.max()).nonzero()[0].tolist())
    column = place[1] * run.axes[0].block_size + 3
    for wrong in (y[place[0], column] ^ 1, torch.tensor(0x7F)):
        off = y.clone()
        off[place[0], column] = wrong
        assert run.wrong(0, "y_global", codes(off)).sum() == 1
    for wrong in (y.roll(4, 0), torch.zeros_like(y), y[[1, 0, *range(2, 8)]]):
        assert run.wrong(0, "y_global", codes(wrong)).any()
    for wrong in (s * 1.02, s.roll(4, 0), torch.zeros_like(s), s + 1e-9):
        assert run.wrong(0, "s_global", wrong).any()


def test_a_block_of_zeros_has_scale_zero_and_either_zero_as_codes() -> None:
    x = torch.zeros(4, 256, dtype=torch.bfloat16)
    x[0, 5] = -0.0
    run = run_reference(NAME, world_size=1, args=[{"local_tensor": x}])
    assert not run.outputs[0]["s_global"].any()
    assert not run.wrong(0, "y_global", codes(torch.full((4, 256), 0x80, dtype=torch.uint8))).any()


def test_sizes_and_cost() -> None:
    problem = find_problem(NAME)
    with pytest.raises(SizeError, match="block_size=96 must be a power of two"):
        problem.axes(size={"N": 960, "block_size": 96}, world_size=2, rank=0)
    with pytest.raises(SizeError, match="N=960 must be a multiple of block_size=128"):
        problem.axes(size={"N": 960}, world_size=2, rank=0)
    assert make_axes(problem, trial=1)[0].block_size != 128
    assert make_axes(problem, trial=1, timed=True)[0].block_size == 128
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.vector_flops, least.memory_bytes) == (4_194_304, 6_422_528)
    assert (least.link_in_bytes, least.link_out_bytes) == (3_244_032, 1_081_344)
