"""QuantizedGradAllReduce against whole-number codes in float64; ties, short and zero blocks, near misses."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "QuantizedGradAllReduce"


def oracle(run: Run, quantise: bool = True, least: float = 1e-8) -> torch.Tensor:
    """The mean over ranks, block by block, in float64."""
    b, parts = run.axes[0].B, []
    for args in run.args:
        blocks = []
        for block in args["flat_grad"].double().split(b):
            scale = max(float(block.abs().max()), least) / 127
            codes = torch.tensor([round(x) for x in (block / scale).tolist()], dtype=torch.float64)  # ties to even
            blocks.append(codes * scale if quantise else block)
        parts.append(torch.cat(blocks))
    return torch.stack(parts).mean(0)


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial", "dtype"), [(1, 1, "bfloat16"), (2, 0, "float32"), (4, 2, "bfloat16")])
def test_matches_whole_number_codes(world_size: int, trial: int, dtype: str, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol, dtype=dtype)
    strict = Run(run.problem, run.axes, run.args, run.outputs)
    strict.assert_passes_own_checks()
    run.assert_passes_own_checks()
    good = oracle(run).to(run.outputs[0]["out"].dtype)
    assert not strict.wrong(0, "out", good).any()
    unquantised = strict.wrong(0, "out", oracle(run, quantise=False).to(good.dtype))
    assert unquantised.float().mean() > 0.3


def test_other_legal_scales_and_orders_pass() -> None:
    """Reciprocals instead of divisions, and a sum the other way round, move ties only."""
    run = run_reference(NAME, world_size=4, size={"N": 40_000, "B": 8}, protocol="published")
    run = Run(run.problem, run.axes, run.args, run.outputs)
    parts = []
    for args in run.args:
        blocks = args["flat_grad"].float().view(-1, 8)
        scales = blocks.abs().amax(1, keepdim=True) * (1 / 127)
        parts.append(((blocks * (1 / scales)).round() * scales).flatten())
    other = (sum(reversed(parts)) * 0.25).bfloat16()
    assert (other != run.outputs[0]["out"]).any()
    assert not run.wrong(3, "out", other).any()


@pytest.mark.parametrize("trial", [0, 1])
def test_near_misses_are_refused(trial: int) -> None:
    run = run_reference(NAME, world_size=2, trial=trial)
    good = run.outputs[0]["out"]
    one_off = good.clone()
    one_off[int(good.abs().argmax())] *= 1.02
    own = [args["flat_grad"] for args in run.args]
    for wrong in (one_off, good * 1.02, good.roll(16), torch.zeros_like(good), good * 2, own[0]):
        assert run.wrong(0, "out", wrong).any()


def test_a_zero_block_gives_zero_and_tiny_values_are_lost() -> None:
    x = torch.tensor([0.0, 0.0, 3e-11, -2e-11, 1.0, -0.25], dtype=torch.float32)
    run = run_reference(
        NAME, world_size=1, size={"N": 6, "B": 2}, dtype="float32", args=[{"flat_grad": x}], protocol="published"
    )
    assert run.outputs[0]["out"].tolist() == pytest.approx([0, 0, 0, 0, 1, -32 / 127])


def test_without_the_least_scale_tiny_blocks_are_wrong() -> None:
    run = run_reference(NAME, world_size=2, trial=1)
    assert not run.wrong(0, "out", oracle(run).bfloat16()).any()
    wrong = run.wrong(0, "out", oracle(run, least=1e-30).bfloat16())
    assert wrong.any() and run.outputs[0]["out"][wrong].abs().max() < 1e-8


def test_nothing_at_all_and_no_block() -> None:
    assert run_reference(NAME, world_size=2, size={"N": 0}, protocol="published").outputs[0]["out"].numel() == 0
    with pytest.raises(SizeError, match="B=0 must be at least 1"):
        find_problem(NAME).axes(size={"B": 0}, world_size=2, rank=0)


def test_trials_have_short_and_zero_blocks() -> None:
    problem = find_problem(NAME)
    assert all(ax.N % ax.B for ax in (make_axes(problem, trial=trial)[0] for trial in range(4)))
    assert make_axes(problem, size="published", trial=1, timed=True)[0].N == 1_048_576
    run = run_reference(NAME, world_size=2)
    zero = [args["flat_grad"][:4096].view(-1, 16).eq(0).all(1) for args in run.args]
    assert (zero[0] & zero[1]).any() and (zero[0] & ~zero[1]).any()
