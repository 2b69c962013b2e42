"""Gather: oracle, rank-dependent result shape, every rank as the root."""

import pytest

from tests.problems.support import find_problem, make_axes, run_reference, same


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 2), (8, 3)])
def test_the_root_gets_the_stack_and_the_others_keep_their_own(world_size, trial):
    run = run_reference("Gather", world_size=world_size, trial=trial)
    run.assert_passes_own_checks()
    blocks = [args["tensor"] for args in run.args]
    for rank, outputs in enumerate(run.outputs):
        if rank == run.axes[rank].dst:
            assert outputs["out"].shape == (world_size, 32, 48)
            assert all(same(outputs["out"][s], block) for s, block in enumerate(blocks))
        else:
            assert same(outputs["out"], blocks[rank])


def test_every_rank_is_the_root():
    problem = find_problem("Gather")
    assert [make_axes(problem, trial=trial)[0].dst for trial in range(8)] == [3, 0, 0, 0, 0, 1, 1, 1]
    assert make_axes(problem, trial=1, timed=True)[0].dst == 3
    assert make_axes(problem, trial=1, protocol="published")[0].dst == 0
