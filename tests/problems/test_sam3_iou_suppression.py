"""SAM3IoUSuppression against a pair-by-pair count on the pixels of all ranks."""

from collections.abc import Sequence

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def suppressed_objects(run: Run, equal_counts: bool = True) -> list[bool]:
    """The decision of every object, one pair at a time, with whole numbers."""
    ax = run.axes[0]
    threshold = torch.tensor(ax["iou_threshold"], dtype=torch.float32)
    pixels = [(mask.float() > 0).flatten() for args in run.args for mask in args["low_res_masks_local"]]
    last: Sequence[int] = run.args[0]["last_occluded"].tolist()
    found = [False] * ax.N
    for i in range(ax.N):
        for j in range(ax.N):
            both, either = int((pixels[i] & pixels[j]).sum()), int((pixels[i] | pixels[j]).sum())
            share = torch.tensor(float(both)) / max(either, 1)
            overlap = share > threshold or (equal_counts and share == threshold)
            later = last[i] < last[j] if ax.flag("reverse") else last[i] > last[j]
            found[i] |= i != j and bool(overlap) and later and last[j] > -1
    return found


def assert_right(run: Run) -> list[bool]:
    expected = suppressed_objects(run)
    masks = torch.cat([args["low_res_masks_local"] for args in run.args]).float()
    for i, blank in enumerate(expected):
        if blank:
            masks[i] = -10
    scores = torch.cat([args["obj_scores_local"] for args in run.args]).float()
    for outputs in run.outputs:
        assert outputs["suppressed"].tolist() == expected
        assert torch.equal(outputs["masks"].nan_to_num(7), masks.nan_to_num(7))
        assert torch.equal(outputs["scores"], scores)
    return expected


@pytest.mark.parametrize(("trial", "world_size"), [(0, 4), (1, 4), (2, 2), (3, 4), (6, 2), (7, 1)])
def test_trials_match_a_count_by_pairs(trial: int, world_size: int) -> None:
    run = run_reference("SAM3IoUSuppression", world_size=world_size, trial=trial)
    assert_right(run)
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("size", "trial"), [("tiny", 0), ("tiny", 2), ("published", 4)])
def test_an_overlap_of_just_the_threshold_decides(size: str, trial: int) -> None:
    run = run_reference("SAM3IoUSuppression", size=size, world_size=4, trial=trial)
    assert suppressed_objects(run) != suppressed_objects(run, equal_counts=False)


def test_some_objects_are_suppressed_and_some_stay() -> None:
    blank = assert_right(run_reference("SAM3IoUSuppression", world_size=4, trial=1))
    assert any(blank)
    assert not all(blank)


def two_by_two(last: Sequence[int], *, reverse: bool, threshold: float = 0.5) -> list[bool]:
    """Decisions about four objects: twins on both ranks, an empty one, and one that covers half of a twin."""
    square, half = torch.full((16, 16), -1.0), torch.full((16, 16), -1.0)
    square[2:12, 2:12] = 1
    half[2:7, 2:12] = 1
    square[0, 0] = torch.nan  # background
    empty = torch.zeros(16, 16)  # 0 is background too
    masks = [torch.stack([square, empty]), torch.stack([square, half])]
    args = [
        {
            "low_res_masks_local": m.bfloat16(),
            "obj_scores_local": torch.ones(2).bfloat16(),
            "last_occluded": torch.tensor(last),
        }
        for m in masks
    ]
    size = {"Hm": 16, "Wm": 16, "num_obj_per_gpu": (2, 2), "reverse": reverse, "iou_threshold": threshold}
    return assert_right(run_reference("SAM3IoUSuppression", size=size, world_size=2, protocol="published", args=args))


def test_threshold_is_reached_by_equality_and_never_occluded_ones_keep_nobody_out() -> None:
    assert two_by_two([3, 3, 3, 1], reverse=False) == [True, False, True, False]  # IoU of half and twin is just 0.5
    assert two_by_two([3, 3, 3, 1], reverse=False, threshold=0.51) == [False] * 4
    assert two_by_two([4, 0, -1, -1], reverse=False) == [False] * 4
    assert two_by_two([4, 0, -1, 4], reverse=True) == [False, False, True, False]


def test_checks_refuse_a_gather_alone_and_blanked_scores() -> None:
    run = run_reference("SAM3IoUSuppression", world_size=4, trial=1)
    blank = run.outputs[0]["suppressed"]
    gathered = torch.cat([args["low_res_masks_local"] for args in run.args]).float()
    assert run.wrong(0, "masks", gathered).any()
    assert run.wrong(0, "suppressed", torch.zeros_like(blank)).any()
    assert run.wrong(0, "scores", run.outputs[0]["scores"].masked_fill(blank, -10)).any()


def test_trials_cover_directions_thresholds_and_empty_ranks() -> None:
    problem = find_problem("SAM3IoUSuppression")
    axes = [make_axes(problem, trial=trial)[0] for trial in range(8)]
    assert {ax.flag("reverse") for ax in axes} == {True, False}
    assert len({ax["iou_threshold"] for ax in axes}) > 1
    assert any(0 in ax["num_obj_per_gpu"] for ax in axes)
    assert min(ax.N for ax in axes) <= 1
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert timed["num_obj_per_gpu"] == (1, 2, 3, 1)
    published = make_axes(problem, size="published", protocol="published", world_size=8, trial=1)[0]
    assert published["num_obj_per_gpu"] == (2, 3, 1, 2, 3, 1, 2, 3)
