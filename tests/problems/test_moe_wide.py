"""MoEWide: oracle, several experts per rank at every group size."""

import pytest

from tests.problems.moe_oracle import assert_rows_are_right, expected
from tests.problems.support import find_problem, make_axes, run_reference


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (1, 1), (2, 0), (2, 2), (4, 0), (4, 1), (4, 2), (8, 3)])
def test_every_row(world_size, trial):
    assert_rows_are_right(run_reference("MoEWide", world_size=world_size, trial=trial))


@pytest.mark.parametrize("size", [{"K": 4, "experts_per_rank": 8}, {"K": 4}, {"T": 0}])
def test_edge_sizes(size):
    tiny = dict(find_problem("MoEWide").sizes["tiny"])
    assert_rows_are_right(run_reference("MoEWide", size=tiny | size, world_size=2))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published(world_size):
    run_reference("MoEWide", world_size=world_size, protocol="published").assert_passes_own_checks()


def test_one_expert_less_is_refused():
    run = run_reference("MoEWide")
    assert run.wrong(0, "out", expected(run, 0, keep=1).bfloat16()).all(-1).float().mean() > 0.6
    assert not run.wrong(0, "out", expected(run, 0).bfloat16()).any()


def test_experts_follow_the_group():
    problem = find_problem("MoEWide")
    assert [make_axes(problem, world_size=W)[0].E for W in (1, 2, 4, 8)] == [2, 4, 8, 16]
    assert [make_axes(problem, size="large", world_size=W)[0].E for W in (1, 2, 4, 8)] == [8, 16, 32, 64]
    halves = make_axes(problem, trial=2)[0]
    assert (halves["group"], halves.E, halves.L) == (((0, 2), (1, 3)), 4, 2)
    assert len(make_axes(problem, trial=1)[0]["idle"]) == 2
