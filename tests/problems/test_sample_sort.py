"""SampleSort against a sort of all values in one process."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def assert_sorted(run: Run) -> None:
    """The outputs, joined in rank order, are the sorted values, cut as evenly as they can be."""
    values = sorted(value for args in run.args for value in args["local_shard"].tolist())
    pieces = [outputs["sorted_shard"].tolist() for outputs in run.outputs]
    assert [value for piece in pieces for value in piece] == values
    lengths = [len(piece) for piece in pieces]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("trial", range(9))
def test_every_pattern_is_sorted(trial: int) -> None:
    run = run_reference("SampleSort", world_size=4, trial=trial)
    assert_sorted(run)
    run.assert_passes_own_checks()


@pytest.mark.parametrize("counts", [(0, 0, 0), (0, 2, 0), (1, 0, 0), (0, 1, 40), (5, 0, 3)])
def test_empty_ranks_and_fewer_values_than_ranks(counts: tuple[int, ...]) -> None:
    padded = (*counts, 0)
    args = [{"local_shard": torch.arange(n, 0, -1).float() - rank} for rank, n in enumerate(padded)]
    size = {"counts": padded, "pattern": "normal"}
    assert_sorted(
        run_reference("SampleSort", size=size, world_size=4, protocol="published", dtype="float32", args=args)
    )


@pytest.mark.parametrize("trial", [0, 3])
def test_published_inputs_and_their_empty_ranks(trial: int) -> None:
    run = run_reference("SampleSort", size="published", world_size=2, protocol="published", trial=trial)
    assert [ax.n for ax in run.axes] == ([512, 0] if trial == 3 else [512, 512])
    assert_sorted(run)


def test_check_refuses_a_local_sort_and_one_wrong_value() -> None:
    run = run_reference("SampleSort", size="published", world_size=2, trial=9, dtype="float32")
    good = run.outputs[1]["sorted_shard"]
    one_wrong = good.clone()
    one_wrong[3] = one_wrong[4]
    for bad in (one_wrong, good.flip(0)):
        assert run.wrong(1, "sorted_shard", bad).any()


def test_a_local_sort_of_the_mirrored_rank_was_accepted_and_is_refused() -> None:
    for protocol, accepted in (("published", True), ("robust", False)):
        run = run_reference("SampleSort", size="published", world_size=4, protocol=protocol, timed=True)
        mirrored = [args["local_shard"].sort().values for args in reversed(run.args)]
        wrong = [run.wrong(rank, "sorted_shard", shard).any() for rank, shard in enumerate(mirrored)]
        assert not any(wrong) if accepted else all(wrong)


def test_trials_cover_patterns_empty_ranks_and_tiny_totals() -> None:
    problem = find_problem("SampleSort")
    axes = [make_axes(problem, trial=trial)[0] for trial in range(9)]
    assert len({ax["pattern"] for ax in axes}) >= 8
    assert any(0 in ax["counts"] for ax in axes)
    assert any(ax.N < 8 for ax in axes)
    timed = make_axes(problem, size="published", trial=5, timed=True)[0]
    assert (timed["counts"], timed["pattern"]) == ((256,) * 4, "normal")
