"""GNNNegativeScoring against counting, by numbers rounded one by one."""

import math

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def key(score: float, dtype: torch.dtype) -> float:
    """The rounded sigmoid; 2 for NaN, which counts as the greatest."""
    if math.isnan(score):
        return 2.0
    exact = 0.0 if score < -700 else 1 / (1 + math.exp(-score))
    return float(torch.tensor(exact, dtype=torch.float32).to(dtype))


def oracle(run: Run) -> list[int]:
    ranks = []
    for args in run.args:
        dtype = args["local_pos_scores"].dtype
        for p, row in zip(args["local_pos_scores"].tolist(), args["local_neg_scores"].tolist(), strict=True):
            ranks.append(1 + sum(key(q, dtype) > key(p, dtype) for q in row))
    return ranks


def assert_right(run: Run) -> None:
    expected = torch.tensor(oracle(run), dtype=torch.int64)
    for rank, outputs in enumerate(run.outputs):
        assert outputs["ranks"].dtype == torch.int64
        differ = int((outputs["ranks"] != expected).sum())
        assert differ <= 1, "but for the last bit of a sigmoid"
        assert int(run.wrong(rank, "ranks", expected).sum()) == 0
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 1), (4, 3), (4, 7)])
def test_positives_are_ranked(world_size: int, trial: int) -> None:
    assert_right(run_reference("GNNNegativeScoring", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_scores(world_size: int) -> None:
    assert_right(run_reference("GNNNegativeScoring", world_size=world_size, protocol="published"))


def test_no_negatives_nan_and_ties() -> None:
    size = {"K": 3, "counts": (2, 2)}
    nan, inf = float("nan"), float("inf")
    first = {"pos": [nan, 1.0], "neg": [[nan, inf, 0.0], [nan, 0.5, 1.0]]}
    second = {"pos": [inf, -inf], "neg": [[20.0, inf, 3.0], [-200.0, -inf, -1.0]]}
    args = [
        {f"local_{name}_scores": torch.tensor(values).bfloat16() for name, values in part.items()}
        for part in (first, second)
    ]
    run = run_reference("GNNNegativeScoring", world_size=2, size=size, args=args, protocol="published")
    assert run.outputs[1]["ranks"].tolist() == [1, 2, 1, 2 if key(-200.0, torch.bfloat16) == 0 else 3]
    none = run_reference("GNNNegativeScoring", world_size=2, size={"K": 0, "counts": (2, 1)}, protocol="published")
    assert none.outputs[0]["ranks"].tolist() == [1, 1, 1]


def test_ties_may_come_in_any_order_and_one_percent_was_accepted() -> None:
    size = {"base": 30, "K": 1000}
    run = run_reference("GNNNegativeScoring", world_size=2, size=size, protocol="published")
    good = run.outputs[0]["ranks"]
    assert not run.wrong(0, "ranks", good + good // 100).any()
    run = run_reference("GNNNegativeScoring", world_size=2, size=size)
    good = run.outputs[0]["ranks"]
    keys = [(a["local_pos_scores"].sigmoid().unsqueeze(1), a["local_neg_scores"].sigmoid()) for a in run.args]
    last = torch.cat([1 + (q >= p).sum(1) for p, q in keys])
    assert (last > good).float().mean() > 0.5
    for order in (last, (good + last) // 2):
        assert not run.wrong(0, "ranks", order).any()
    for beyond in (good - 1, last + 1):
        assert run.wrong(0, "ranks", beyond).float().mean() > 0.9, "but where a sigmoid is on an edge"
    assert run.wrong(0, "ranks", good + good // 100)[good >= 200].float().mean() > 0.2


def test_nan_is_the_greatest_in_every_order() -> None:
    run = run_reference("GNNNegativeScoring", world_size=2, trial=3)
    without = [
        1 + (a["local_neg_scores"].sigmoid() > a["local_pos_scores"].sigmoid().unsqueeze(1)).sum(1) for a in run.args
    ]
    assert run.wrong(0, "ranks", torch.cat(without)).float().mean() > 0.5


def test_trials_cover_empty_ranks_and_special_scores() -> None:
    problem = find_problem("GNNNegativeScoring")
    trials = [make_axes(problem, trial=trial) for trial in range(8)]
    assert len({axes[0]["counts"] for axes in trials}) == 8
    assert 0 in trials[1][0]["counts"] and trials[1][0].P > 0
    assert trials[7][0].P == 0
    assert trials[3][0]["special"] and not trials[0][0]["special"]
    timed = make_axes(problem, size="published", trial=1, timed=True)
    assert [ax.P_r for ax in timed] == [256, 257, 258, 256]
    assert [ax.P for ax in make_axes(problem, size="published", world_size=8, timed=True)] == [1031] * 8
