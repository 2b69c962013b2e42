"""SinkhornKnopp against scaling vectors over all samples in float64; empty ranks, no rounds, groups, cost."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "SinkhornKnopp"


def oracle(run: Run, *, alone: bool = False) -> list[torch.Tensor]:
    """Every rank's rows of diag(rows) exp(x / tau) diag(columns)."""
    ax = run.axes[0]
    groups = ax["group"] or (tuple(range(ax.W)),)
    out: list[torch.Tensor] = [torch.empty(0)] * ax.W
    for group in [(rank,) for rank in range(ax.W)] if alone else groups:
        kernel = torch.cat([run.args[rank]["teacher_output"].double() for rank in group]).div(ax["tau"]).exp()
        rows, columns = torch.ones(len(kernel), 1).double(), torch.ones(1, ax.K).double()
        if ax.I == 0:
            rows *= len(kernel) / kernel.sum()
        for _ in range(ax.I):
            columns = 1 / (kernel * rows).sum(0, keepdim=True)
            rows = 1 / (kernel * columns).sum(1, keepdim=True)
        sizes = [run.axes[rank].b for rank in group]
        for rank, part in zip(group, (kernel * rows * columns).split(sizes), strict=True):
            out[rank] = part
    return out


@pytest.mark.parametrize("protocol", ["robust", "published"])
@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 1), (4, 2), (4, 3), (2, 4)])
def test_matches_scaling_vectors(world_size: int, trial: int, protocol: str) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol)
    run.assert_passes_own_checks()
    strict = Run(run.problem, run.axes, run.args, run.outputs)
    for rank, expected in enumerate(oracle(run)):
        assert torch.allclose(run.outputs[rank]["assignments"].double(), expected, rtol=1e-4, atol=1e-7)
        assert not strict.wrong(rank, "assignments", expected.float()).any()


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_near_misses_are_refused(trial: int) -> None:
    run = run_reference(NAME, world_size=2, trial=trial)
    good = run.outputs[0]["assignments"]
    one_off = good.clone()
    one_off[1, int(good[1].argmax())] *= 1.01
    misses = [torch.zeros_like(good), torch.full_like(good, 1 / 64), good * 1.02, good.roll(1, 0), one_off]
    for wrong in (*misses, *oracle(run, alone=True)[:1]):
        assert run.wrong(0, "assignments", wrong.float()).any()
    if trial < 2:  # one round more
        more = Run(run.problem, [type(ax)(ax.entries | {"I": ax.I + 1}) for ax in run.axes], run.args, run.outputs)
        assert run.wrong(0, "assignments", oracle(more)[0].float()).any()


def test_a_wrong_count_changes_nothing_and_an_empty_rank_takes_part() -> None:
    run = run_reference(NAME, world_size=4, trial=1)
    assert 0 in [ax.b for ax in run.axes]
    args = [one | {"n_masked_patches_tensor": one["n_masked_patches_tensor"] + 5} for one in run.args]
    other = run_reference(NAME, world_size=4, trial=1, args=args)
    for rank in range(4):
        assert not run.wrong(rank, "assignments", other.outputs[rank]["assignments"]).any()
        assert torch.allclose(run.outputs[rank]["assignments"].sum(1), torch.ones(run.axes[rank].b))


def test_bfloat16_scores_are_widened() -> None:
    run = run_reference(NAME, world_size=2, dtype="bfloat16")
    assert not run.wrong(1, "assignments", oracle(run)[1].float()).any()


def test_modes_and_cost() -> None:
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial)[0] for trial in range(4)]
    assert [ax.I for ax in trials[:3]] == [3, 1, 0] and trials[3].I >= 3
    assert trials[3]["group"] == ((0, 2), (1, 3))
    assert make_axes(problem, trial=2, timed=True)[0].I == 3
    least = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (least.vector_flops, least.memory_bytes) == (268_435_456, 134_217_728)
    assert least.link_in_bytes == least.link_out_bytes == 294_912
