"""Scatter: oracle, rank-dependent argument shape, every rank as the source."""

import pytest

from tests.problems.support import find_problem, make_axes, run_reference, same


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 2), (8, 3)])
def test_rank_r_gets_block_r_bit_for_bit(world_size, trial):
    run = run_reference("Scatter", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    stack = run.args[run.axes[0].src]["tensor"]
    assert stack.shape == (world_size, 32, 48)
    assert all(same(outputs["out"], stack[rank]) for rank, outputs in enumerate(run.outputs))


def test_the_template_and_another_block_are_refused():
    run = run_reference("Scatter", world_size=2)
    source = run.axes[0].src
    other = 1 - source
    assert run.wrong(other, "out", run.args[other]["tensor"]).any()
    assert run.wrong(other, "out", run.args[source]["tensor"][source]).any()


def test_every_rank_is_the_source():
    problem = find_problem("Scatter")
    assert [make_axes(problem, trial=trial)[0].src for trial in range(8)] == [3, 0, 0, 0, 0, 1, 1, 1]
    assert make_axes(problem, trial=1, timed=True)[0].src == 3
    assert [len(ax["tensor_shape"]) for ax in make_axes(problem, trial=2)] == [3, 2, 2, 2]


def test_published_blocks_are_constant_and_templates_zero():
    run = run_reference("Scatter", protocol="published")
    run.assert_passes_own_checks()
    assert [float(outputs["out"].float().mean()) for outputs in run.outputs] == [1, 2, 3, 4]
    assert not run.args[1]["tensor"].any()
