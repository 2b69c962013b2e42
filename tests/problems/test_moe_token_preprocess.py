"""MoETokenPreprocess: oracle, groups, ragged and empty ranks, modes."""

import pytest

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference


def members(ax):
    """The ranks of this rank's group, in order."""
    if ax["group"] is None:
        return list(range(ax.W))
    return next(list(part) for part in ax["group"] if ax.r in part)


def assert_counts_are_right(run):
    """Counts the ones of every mask one by one."""
    for rank, (ax, outputs) in enumerate(zip(run.axes, run.outputs, strict=True)):
        group = members(ax)
        place, local = group.index(rank), ax.E // len(group)
        sent = [0] * len(group)
        for expert, _, _ in run.args[rank]["expert_mask"].nonzero().tolist():
            sent[expert // local] += 1
        received = [[0] * local for _ in group]
        for source, other in enumerate(group):
            for expert, _, _ in run.args[other]["expert_mask"].nonzero().tolist():
                if expert // local == place:
                    received[source][expert % local] += 1
        assert outputs["input_splits"].tolist() == sent
        assert outputs["output_splits"].tolist() == [sum(row) for row in received]
        assert outputs["tokens_per_local_expert"].tolist() == received
        assert outputs["sum_per_local_expert"].tolist() == [sum(column) for column in zip(*received, strict=True)]


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (1, 1), (2, 2), (4, 0), (4, 1), (4, 5), (8, 3)])
def test_counts(world_size, trial):
    run = run_reference("MoETokenPreprocess", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    assert_counts_are_right(run)


def test_one_count_off_is_refused():
    run = run_reference("MoETokenPreprocess", size="published", world_size=2)
    for leaf, value in run.outputs[0].items():
        got = value.clone()
        got.view(-1)[0] += 1
        assert run.wrong(0, leaf, got).sum() == 1


def test_masks_follow_the_modes():
    for trial, distinct, idle in ((1, True, True), (2, False, True), (3, False, False), (4, True, False)):
        run = run_reference("MoETokenPreprocess", size={"T": 256}, world_size=2, trial=trial)
        assert all((args["expert_mask"].sum(0) == 1).all() for args in run.args)
        twice = any(bool((args["expert_mask"].sum(1) > 1).any()) for args in run.args)
        assert twice != distinct
        counts = sum(args["expert_mask"].sum((1, 2)) for args in run.args)
        assert not idle or (counts == 0).any()


def test_modes_cover_ragged_empty_ranks_and_interleaved_groups():
    problem = find_problem("MoETokenPreprocess")
    trials = [make_axes(problem, trial=trial) for trial in range(6)]
    assert [ax.T for ax in trials[0]] == [64] * 4
    assert any(0 in {ax.T for ax in axes} and len({ax.T for ax in axes}) > 1 for axes in trials)
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 2), (1, 3))}
    assert [axes[0].L for axes in trials[1:3]] == [2, 4]
    assert make_axes(problem, trial=5, timed=True)[0]["group"] is None
    with pytest.raises(SizeError, match="E=12 must be a multiple of G=8"):
        problem.axes(size={"E": 12}, world_size=8, rank=0)
