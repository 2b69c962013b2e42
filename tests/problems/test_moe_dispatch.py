"""MoEDispatch: rows delivered token by token, mechanical splits, modes, edge cases, cost."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference, same


def members(ax):
    """The ranks of this rank's group, in order."""
    return list(range(ax.W)) if ax["group"] is None else next(list(part) for part in ax["group"] if ax.r in part)


def pairs_of(args):
    """(expert, token), ascending, each once."""
    return sorted({(e, t) for e, _, t in args["expert_mask"].nonzero().tolist()})


def expected(run, rank):
    """Rows that this rank hosts, by expert, source, token: from the routing alone, without splits or counts."""
    ax = run.axes[rank]
    group = members(ax)
    first = group.index(rank) * ax.L
    rows = [
        run.args[source]["hidden_states"][t]
        for expert in range(first, first + ax.L)
        for source in group
        for e, t in pairs_of(run.args[source])
        if e == expert
    ]
    return torch.stack(rows) if rows else torch.empty(0, ax.H, dtype=torch.bfloat16)


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (1, 3), (2, 2), *((4, trial) for trial in range(6)), (8, 3)])
def test_routed_rows(world_size, trial):
    run = run_reference("MoEDispatch", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    for rank, (ax, args, outputs) in enumerate(zip(run.axes, run.args, run.outputs, strict=True)):
        assert same(outputs["dispatched"], expected(run, rank))
        assert outputs["permutation"].tolist() == [t for _, t in pairs_of(args)]
        assert outputs["flat_shape"].tolist() == [ax.T, ax.H]
        slots = {(e, t): 0 for e in range(ax.E) for t in range(ax.T)}
        for e, _, t in args["expert_mask"].nonzero().tolist():
            slots[e, t] += 1
        assert outputs["routing_map"].flatten().tolist() == list(slots.values())


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_splits_are_followed_mechanically(world_size):
    run = run_reference("MoEDispatch", world_size=world_size, protocol="published")
    run.assert_passes_own_checks()
    sent = [[args["hidden_states"][t] for _, t in pairs_of(args)] for args in run.args]
    piece = 128 // world_size
    for rank, outputs in enumerate(run.outputs):
        stacked = [row for rows in sent for row in rows[rank * piece : (rank + 1) * piece]]
        chunk, local = 16, 8 // world_size
        order = [s * local + e for e in range(local) for s in range(world_size)]
        assert same(outputs["dispatched"], torch.stack([stacked[q * chunk + i] for q in order for i in range(chunk)]))


def test_more_dimensions_are_flattened():
    run = run_reference("MoEDispatch", world_size=2)
    args = [one | {"hidden_states": one["hidden_states"].view(4, 16, 64)} for one in run.args]
    again = run_reference("MoEDispatch", world_size=2, args=args)
    assert all(
        same(list(one.values()), list(two.values())) for one, two in zip(run.outputs, again.outputs, strict=True)
    )


def test_splits_that_do_not_add_up_raise():
    run = run_reference("MoEDispatch", world_size=1)
    mask = run.args[0]["expert_mask"].clone()
    mask[:, :, 7] = 0
    with pytest.raises(RuntimeError, match="input_splits add up to 128, not to the rows to send"):
        run_reference("MoEDispatch", world_size=1, args=[run.args[0] | {"expert_mask": mask}])


def test_no_tokens():
    run = run_reference("MoEDispatch", size={"T": 0}, world_size=2, protocol="published")
    assert [tuple(outputs["dispatched"].shape) for outputs in run.outputs] == [(0, 1024)] * 2


def test_modes():
    problem = find_problem("MoEDispatch")
    trials = [make_axes(problem, trial=trial) for trial in range(6)]
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 2), (1, 3))}
    assert [ax.T for ax in trials[0]] == [64] * 4 and len({ax.R for ax in trials[0]}) > 1
    assert 0 in {ax.T for ax in trials[1]}
    assert any(0 in [n for row in ax["counts"] for n in row] for ax in trials[0])  # some cell is empty
    assert any(not any(row[e] for row in ax["counts"]) for ax in trials[1] for e in range(2))  # an idle expert
    assert all(ax.P < ax.T * ax.K for ax in trials[2]) and any(ax.P < ax.T * ax.K for ax in trials[3])
    masks = run_reference("MoEDispatch", trial=3).args
    assert any(bool((args["expert_mask"].sum(1) == 2).any()) for args in masks)  # an expert named twice
    masks = run_reference("MoEDispatch", trial=2).args
    assert all(bool((args["expert_mask"].sum((0, 1)) == 0).any()) for args in masks)  # a dropped token
    timed = make_axes(problem, trial=3, timed=True)
    assert {(ax.T, ax.P, ax["group"]) for ax in timed} == {(64, 128, None)}


def test_rows_over_the_link():
    problem = find_problem("MoEDispatch")
    run = run_reference("MoEDispatch")
    for rank, (ax, args) in enumerate(zip(run.axes, run.args, strict=True)):
        remote = {(t, e // 2) for e, t in pairs_of(args) if e // 2 != rank}
        assert problem.cost(ax).link_out_bytes == len(remote) * 128
    assert sum(ax.rows_in for ax in run.axes) == sum(ax.rows_out for ax in run.axes)


def test_cost():
    problem = find_problem("MoEDispatch")
    cost = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (cost.matrix_flops, cost.vector_flops, cost.memory_bytes) == (0, 16_384, 6_406_144)
    assert cost.link_in_bytes == cost.link_out_bytes == pytest.approx(2_921_033, rel=1e-6)
    large = problem.cost(problem.axes(size="large", world_size=4, rank=0))
    assert large.link_in_bytes == pytest.approx(70_917_796, rel=1e-6)
    with pytest.raises(SizeError, match="MoEDispatch: axis E=8 must be a multiple of G=3"):
        problem.axes(size={"group": ((0, 1, 2), (3,))}, world_size=4, rank=0)
