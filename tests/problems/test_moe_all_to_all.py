"""MoEAllToAll: rows sorted by destination one by one, modes, edge cases, cost."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference, same


def pieces_of(ax, rows):
    """The rows of one rank, as a list for each destination of its group."""
    size = ax.W if ax["group"] is None else len(ax["group"][0])
    splits = ax["input_split_sizes"] or [len(rows) // size] * size
    left = list(rows)
    return [[left.pop(0) for _ in range(count)] for count in splits]


def assert_rows_are_right(run):
    for rank, (ax, outputs) in enumerate(zip(run.axes, run.outputs, strict=True)):
        group = range(ax.W) if ax["group"] is None else next(part for part in ax["group"] if rank in part)
        place = list(group).index(rank)
        sources = [pieces_of(run.axes[source], run.args[source]["local_tensor"]) for source in group]
        rows = [row for source in sources for row in source[place]]
        expected = torch.stack(rows) if rows else torch.empty(0, ax.H, dtype=torch.bfloat16)
        assert same(outputs["out"], expected)


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (2, 3), *((4, trial) for trial in range(5)), (8, 2)])
def test_rows(world_size, trial):
    run = run_reference("MoEAllToAll", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    assert_rows_are_right(run)


@pytest.mark.parametrize("size", ["published", {"T": 0, "H": 3}])
def test_even_rows(size):
    assert_rows_are_right(run_reference("MoEAllToAll", size=size, world_size=2, protocol="published"))


def test_one_bit_and_swapped_rows_are_refused():
    run = run_reference("MoEAllToAll")
    right = run.outputs[0]["out"]
    bits = right.clone()
    bits.view(torch.int16)[3, 5] ^= 1
    assert run.wrong(0, "out", bits).sum() == 1
    swapped = right[torch.randperm(len(right), generator=torch.Generator().manual_seed(0))]
    assert run.wrong(0, "out", swapped).any()


def test_modes():
    problem = find_problem("MoEAllToAll")
    trials = [make_axes(problem, trial=trial) for trial in range(5)]
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 2), (1, 3))}
    assert [axes[0]["input_split_sizes"] is None for axes in trials] == [False, False, False, True, False]
    assert {ax.T for ax in trials[0]} == {64} and len({ax.R for ax in trials[0]}) > 1
    assert 0 in {ax.T for ax in trials[1]} and 0 in {ax.R for ax in trials[4]}
    assert any(0 in ax["input_split_sizes"] for ax in trials[0])
    timed = make_axes(problem, size="published", trial=3, timed=True)
    assert {(ax["input_split_sizes"], ax.R) for ax in timed} == {((256,) * 4, 1024)}
    large = make_axes(problem, size="large", trial=3, timed=True)
    assert {ax.T for ax in large} == {16384} and len({ax.R for ax in large}) == 4


def test_lists_match_across_ranks():
    axes = make_axes(find_problem("MoEAllToAll"), world_size=8, trial=1)
    sent = [ax["input_split_sizes"] for ax in axes]
    assert [ax["output_split_sizes"] for ax in axes] == list(zip(*sent, strict=True))


def test_sizes_that_do_not_fit():
    with pytest.raises(SizeError, match="MoEAllToAll: axis T=66 must be a multiple of G=4"):
        find_problem("MoEAllToAll").axes(size={"T": 66}, world_size=4, rank=0)


def test_cost():
    problem = find_problem("MoEAllToAll")
    cost = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert (cost.memory_bytes, cost.link_in_bytes, cost.link_out_bytes) == (4_194_304, 1_572_864, 1_572_864)
    large = problem.cost(problem.axes(size="large", world_size=4, rank=0))
    assert (large.link_in_bytes, large.link_out_bytes) == (100_663_296, 100_663_296)
    ragged = make_axes(problem)[1]
    assert problem.cost(ragged).link_out_bytes == (64 - ragged["input_split_sizes"][1]) * 64
    alone = problem.cost(problem.axes(size="published", world_size=1, rank=0))
    assert (alone.memory_bytes, alone.link_in_bytes) == (0, 0)
