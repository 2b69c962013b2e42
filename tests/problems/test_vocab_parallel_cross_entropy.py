"""VocabParallelCrossEntropy against float64 log-softmax of the whole vocabulary."""

from typing import Any

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Job, Run, find_problem, run_reference

NAME = "VocabParallelCrossEntropy"
LOGITS = "vocab_parallel_logits"


def whole(run: Run) -> torch.Tensor:
    return torch.cat([args[LOGITS] for args in run.args], dim=-1).double()


def oracle(run: Run) -> torch.Tensor:
    """The loss (B, S), unrounded."""
    target = run.args[0]["target"][..., None]
    return -whole(run).log_softmax(-1).gather(-1, target).squeeze(-1)


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_matches_log_softmax(protocol: str, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype="float32")
    shifted = (whole(run) - whole(run).amax(-1, keepdim=True)).chunk(world_size, dim=-1)
    for rank, outputs in enumerate(run.outputs):
        torch.testing.assert_close(outputs["loss"].double(), oracle(run), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs[LOGITS].double(), shifted[rank], rtol=1e-6, atol=0)
        assert not run.wrong(rank, "loss", oracle(run).float()).any()


@pytest.mark.parametrize("protocol", ["robust", "published"])
def test_unrounded_losses_pass_in_bfloat16_and_near_misses_do_not(protocol: str) -> None:
    run = run_reference(NAME, size="published", world_size=2, protocol=protocol)
    good, exact = run.outputs[1]["loss"], oracle(run)
    assert not run.wrong(1, "loss", exact.bfloat16()).any()
    if protocol == "robust":
        neighbour = [{"target": (args["target"] + 1) % 512, LOGITS: args[LOGITS]} for args in run.args]
        other = oracle(Run(run.problem, run.axes, neighbour, run.outputs)).bfloat16()
        for bad in (good * 1.02, good.roll(1, dims=1), other, torch.full_like(good, float(exact.mean()))):
            assert run.wrong(1, "loss", bad).any()
        for bad in (run.args[1][LOGITS], run.outputs[0][LOGITS], run.outputs[1][LOGITS] * 1.02):
            assert run.wrong(1, LOGITS, bad).any()


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_exact_losses_near_zero_pass_however_many_ranks_add_up(world_size: int) -> None:
    job = Job(NAME, size={"B": 2, "S": 2048, "V": 512}, world_size=world_size)
    run = job.prepare()
    target, Vl = run.args[0]["target"], run.axes[0].Vl
    others = whole(run).scatter(-1, target[..., None], -torch.inf).logsumexp(-1)
    small = torch.linspace(0.02, 0.4, target.numel(), dtype=torch.float64).view(target.shape)
    likely = (others - small.expm1().log()).bfloat16()
    for rank, args in enumerate(run.args):
        index = target - rank * Vl
        b, s = ((index >= 0) & (index < Vl)).nonzero(as_tuple=True)
        args[LOGITS][b, s, index[b, s]] = likely[b, s]
    run = run_reference(NAME, size={"B": 2, "S": 2048, "V": 512}, world_size=world_size, args=run.args)
    assert not run.wrong(0, "loss", oracle(run).bfloat16()).any()
    assert run.wrong(0, "loss", run.outputs[0]["loss"] + 0.05).any()


def test_rows_need_the_shift_and_targets_reach_every_rank() -> None:
    run = run_reference(NAME)
    assert whole(run).float().exp().sum(-1).isinf().any()
    assert (whole(run).float().exp().sum(-1) == 0).any()
    assert {int(owner) for owner in run.args[0]["target"].flatten() // run.axes[0].Vl} == {0, 1, 2, 3}
    Vl, targets = run.axes[0].Vl, run.args[0]["target"] % run.axes[0].Vl
    assert (targets == 0).any() and (targets == Vl - 1).any()
    for args in run.args[1:]:
        assert torch.equal(args["target"], run.args[0]["target"])
    run.assert_passes_own_checks()


def small(logits: list[list[float]], target: list[int]) -> Run:
    """Rows over two ranks."""
    table = torch.tensor(logits, dtype=torch.float32)[None]
    args: list[dict[str, Any]] = [
        {LOGITS: half.contiguous(), "target": torch.tensor([target])} for half in table.chunk(2, dim=-1)
    ]
    size = {"B": 1, "S": len(target), "V": table.shape[-1]}
    return run_reference(NAME, world_size=2, size=size, args=args, dtype="float32")


def test_targets_out_of_range_infinities_and_second_calls() -> None:
    inf = float("inf")
    rows = [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [-inf, 0.0, 0.0, -inf], [-inf] * 4, [0.0, inf, 0.0, 0.0]]
    run = small(rows, [-1, 4, 1, 0, 0])
    loss = run.outputs[0]["loss"][0]
    beyond = torch.tensor(rows[0]).logsumexp(0) - 4  # no rank owns the target: logsumexp less the maximum
    torch.testing.assert_close(loss[:2], beyond.expand(2))
    assert loss[2].item() == pytest.approx(torch.tensor(2.0).log().item())
    assert loss[3:].isnan().all()
    again = [{LOGITS: run.outputs[rank][LOGITS], "target": run.args[rank]["target"]} for rank in range(2)]
    second = run_reference(NAME, world_size=2, size={"B": 1, "S": 5, "V": 4}, args=again, dtype="float32")
    torch.testing.assert_close(second.outputs[0]["loss"][0, :3], loss[:3])


def test_published_inputs() -> None:
    run = run_reference(NAME, protocol="published", trial=3)
    assert run.args[2]["target"].flatten()[:3].tolist() == [10, 23, 36]
    generator = torch.Generator().manual_seed(42 + 73_000 + 2 + 3 * 1_000_003)
    assert torch.equal(run.args[2][LOGITS], torch.randn((2, 16, 16), generator=generator).bfloat16())


def test_published_cost_and_vocabularies_that_do_not_divide() -> None:
    problem = find_problem(NAME)
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.vector_flops, least.memory_bytes) == (4 * 8192 * 128, 4_276_224)
    assert least.link_in_bytes == least.link_out_bytes == 49_152
    with pytest.raises(SizeError, match="V=66 must be a multiple of W=4"):
        problem.axes(size={"V": 66}, world_size=4, rank=0)
