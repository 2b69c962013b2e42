"""ReduceScatter: oracle, whole and normal numbers."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference


@pytest.mark.parametrize(
    ("world_size", "trial", "dtype"),
    [(1, 0, None), (2, 1, None), (4, 0, None), (4, 1, "float16"), (8, 0, None), (2, 2, "float64")],
)
def test_rank_r_gets_block_r_of_the_sum(world_size, trial, dtype):
    run = run_reference("ReduceScatter", world_size=world_size, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    exact = sum(args["tensor"].double() for args in run.args).reshape(world_size, 32, 48)
    for rank, outputs in enumerate(run.outputs):
        got = outputs["out"]
        if run.axes[rank]["whole"]:
            assert torch.equal(got.double(), exact[rank])
        assert not run.wrong(rank, "out", exact[rank].to(got.dtype)).any()
        if world_size > 1:
            assert run.wrong(rank, "out", exact[rank - 1].to(got.dtype)).any()


def test_whole_and_normal_numbers_by_turns():
    problem = find_problem("ReduceScatter")
    assert [make_axes(problem, trial=trial)[0]["whole"] for trial in range(4)] == [False, True, False, True]
    assert not make_axes(problem, trial=1, timed=True)[0]["whole"]
