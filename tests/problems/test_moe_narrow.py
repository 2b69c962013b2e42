"""MoENarrow: oracle, the subgroup rule, one expert per token, edge cases."""

import pytest

from pkb_gym.engine.errors import SizeError
from pkb_gym.problems.expert_parallel.moe_narrow.reference import solution
from tests.problems.moe_oracle import assert_rows_are_right, expected
from tests.problems.support import find_problem, make_axes, run_reference


@pytest.mark.parametrize(
    ("world_size", "trial"), [(1, 0), (2, 0), (2, 2), (2, 4), (4, 0), (4, 1), (4, 2), (4, 4), (8, 0), (8, 3)]
)
def test_every_row(world_size, trial):
    assert_rows_are_right(run_reference("MoENarrow", world_size=world_size, trial=trial))


@pytest.mark.parametrize("size", [{"K": 1}, {"num_experts": 1}, {"num_experts": 8}, {"T": 0}])
def test_edge_sizes(size):
    tiny = dict(find_problem("MoENarrow").sizes["tiny"])
    assert_rows_are_right(run_reference("MoENarrow", size=tiny | size))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_published(world_size):
    run_reference("MoENarrow", world_size=world_size, protocol="published").assert_passes_own_checks()


def test_experts_that_do_not_divide_the_ranks():
    problem = find_problem("MoENarrow")
    with pytest.raises(SizeError, match="MoENarrow: axis num_experts=3 must divide W=4"):
        problem.axes(size={"num_experts": 3}, world_size=4, rank=0)

    def of_three_experts(*args):
        *layer, _, _, group = args
        return solution(*layer, 3, 1, group)

    with pytest.raises(RuntimeError, match="ValueError: 4 ranks cannot be cut into subgroups of 3"):
        run_reference("MoENarrow", solution=of_three_experts)


def test_one_expert_more_or_less_is_refused():
    both, one = run_reference("MoENarrow"), run_reference("MoENarrow", trial=4)
    assert (both.axes[0].K, one.axes[0].K) == (2, 1)
    assert both.wrong(0, "out", expected(both, 0, keep=1).bfloat16()).all(-1).float().mean() > 0.6
    assert one.wrong(0, "out", expected(one, 0, keep=2).bfloat16()).all(-1).float().mean() > 0.6


def test_modes():
    problem = find_problem("MoENarrow")
    published = [make_axes(problem, world_size=W, protocol="published")[0] for W in (1, 2, 4, 8)]
    assert [(ax.E, ax.K) for ax in published] == [(1, 1), (1, 1), (2, 2), (4, 2)]
    assert [make_axes(problem, world_size=W)[0].E for W in (1, 2, 4, 8)] == [2, 2, 2, 4]
    trials = [make_axes(problem, trial=trial)[0] for trial in range(6)]
    assert [ax.K for ax in trials] == [2, 1, 1, 2, 1, 1]
    assert [(ax.E, ax.G) for ax in trials] == [(2, 2), (2, 2), (2, 2), (2, 2), (4, 4), (2, 2)]
    assert [ax["group"] for ax in trials[:3]] == [None, None, ((0, 2), (1, 3))]


@pytest.mark.parametrize("size", ["tiny", "published", "large"])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_timed_tokens_are_routed(size, world_size):
    """On 2 ranks there was one expert in timed calls, and on 4 every token went to both: no routing was timed."""
    for trial in range(3):
        timed = make_axes(find_problem("MoENarrow"), size=size, world_size=world_size, trial=trial, timed=True)[0]
        assert timed.E >= 2 and timed.G >= 2 and timed.K < timed.E


def test_timed_experts_matter():
    run = run_reference("MoENarrow", world_size=2, timed=True)
    other = run_reference(
        "MoENarrow",
        world_size=2,
        timed=True,
        args=[one | {"gate_bias": one["gate_bias"].flip(0)} for one in run.args],
    )
    assert run.wrong(0, "out", other.outputs[0]["out"]).all(-1).float().mean() > 0.2
