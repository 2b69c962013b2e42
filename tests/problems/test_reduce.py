"""Reduce: oracle, the tensors of ranks other than the root, whole and normal numbers."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference, same


@pytest.mark.parametrize(
    ("world_size", "trial", "dtype"),
    [(1, 0, None), (2, 1, None), (4, 0, None), (4, 1, None), (4, 2, "float32"), (8, 4, "float16"), (2, 0, "float64")],
)
def test_the_root_gets_the_sum_and_the_others_keep_their_own(world_size, trial, dtype):
    run = run_reference("Reduce", world_size=world_size, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    root = run.axes[0].dst
    for rank, outputs in enumerate(run.outputs):
        if rank != root:
            assert same(outputs["out"], run.args[rank]["tensor"])
    exact = sum(args["tensor"].double() for args in run.args)
    got = run.outputs[root]["out"]
    if run.axes[0]["whole"]:
        assert torch.equal(got.double(), exact)
    # One rounding at the end is as good an answer as W - 1 on the way; the sum without one rank is none.
    assert not run.wrong(root, "out", exact.to(got.dtype)).any()
    if world_size > 1:
        short = exact - run.args[0]["tensor"].double()
        assert run.wrong(root, "out", short.to(got.dtype)).float().mean() > 0.5


def test_whole_numbers_forgive_nothing():
    run = run_reference("Reduce", trial=1)
    assert run.axes[0]["whole"]
    root = run.axes[0].dst
    got = run.outputs[root]["out"].clone()
    got[0, 0] += 1
    assert run.wrong(root, "out", got).nonzero().tolist() == [[0, 0]]


def test_partial_sums_elsewhere_are_refused():
    run = run_reference("Reduce", world_size=2)
    other = 1 - run.axes[0].dst
    assert run.wrong(other, "out", run.outputs[1 - other]["out"]).any()


def test_every_root_with_either_kind_of_numbers():
    problem = find_problem("Reduce")
    axes = [make_axes(problem, trial=trial)[0] for trial in range(24)]
    assert [ax.dst for ax in axes[:8]] == [3, 0, 0, 0, 0, 1, 1, 1]
    assert {(ax.dst, ax["whole"]) for ax in axes} == {(rank, whole) for rank in range(4) for whole in (False, True)}
    timed = make_axes(problem, trial=1, timed=True)[0]
    assert (timed.dst, timed["whole"]) == (3, False)
