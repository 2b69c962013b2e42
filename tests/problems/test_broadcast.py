"""Broadcast: oracle, every rank as the source."""

import pytest

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference, same


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 2), (8, 3)])
def test_every_rank_gets_the_source_bit_for_bit(world_size, trial):
    run = run_reference("Broadcast", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    source = run.args[run.axes[0].src]["tensor"]
    assert all(same(outputs["out"], source) for outputs in run.outputs)


def test_own_data_is_refused_elsewhere():
    run = run_reference("Broadcast", world_size=2)
    source = run.axes[0].src
    assert run.wrong(1 - source, "out", run.args[1 - source]["tensor"]).any()


def test_every_rank_is_the_source_and_timing_keeps_the_sizes_own():
    problem = find_problem("Broadcast")
    trials = [make_axes(problem, trial=trial) for trial in range(8)]
    assert [axes[0].src for axes in trials] == [3, 0, 0, 0, 0, 1, 1, 1]
    assert all(ax.src == axes[0].src for axes in trials for ax in axes)
    assert make_axes(problem, trial=1, timed=True)[0].src == 3
    assert make_axes(problem, trial=1, protocol="published")[0].src == 0
    with pytest.raises(SizeError, match="Broadcast: axis src=4 must name a rank"):
        problem.axes(size={"src": 4}, world_size=4, rank=0)
