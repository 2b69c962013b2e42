"""The study of false alarms: chances of known distributions, and shares of errors as the rules see them."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics

import pytest
import torch

from benchmarks.false_alarms import LARGEST_SHARE, Shares, _shares
from benchmarks.false_alarms_report import PAGE, RESULT, render
from benchmarks.honest_variants import honest_variants
from benchmarks.rare_events import chance_of_any, fit_tail
from tests.problems.support import Job, Run, find_problem, run_jobs

VALUES, LARGEST = 40_000, 120


def log_chance(values: list[float], x: float) -> float:
    return fit_tail(sorted(values)[-LARGEST:], len(values)).log_chance_above(x)


def test_a_normal_tail_is_extrapolated_within_its_order_and_not_below() -> None:
    draws = random.Random(0)
    errors = [abs(draws.gauss(0, 1)) for _ in range(VALUES)]
    for x in (5.0, 6.0, 8.0):
        true = math.log(2 * statistics.NormalDist().cdf(-x))
        assert true < log_chance(errors, x) < 0.5 * true


def test_what_is_bounded_is_rarer_beyond_its_bound() -> None:
    """A sum of three roundings under the bound of its worst case, which no order of the sum exceeds."""
    draws = random.Random(1)
    errors = [abs(sum(draws.uniform(-1, 1) for _ in range(3))) / 4 for _ in range(VALUES)]
    assert max(errors) < 0.75 and log_chance(errors, 1.0) < -20


def test_a_heavy_tail_is_not_taken_for_a_light_one() -> None:
    """P(X > x) = 1e-6 x^-3."""
    draws = random.Random(2)
    errors = [1e-2 * draws.random() ** (-1 / 3) for _ in range(VALUES)]
    assert log_chance(errors, 1.0) > 2 * math.log(1e-6)


def test_no_error_has_no_chance() -> None:
    assert fit_tail([0.0] * 50, 1000).log_chance_above(1.0) == -math.inf
    assert chance_of_any(-math.inf, 1e12) == 0.0


@pytest.fixture(scope="module")
def sums() -> dict[str, Run]:
    """One trial of LayerNormBackward by every variant."""
    variants = honest_variants(find_problem("LayerNormBackward"))
    runs = run_jobs([Job("LayerNormBackward", solution=solution) for solution in variants.values()])
    return dict(zip(variants, runs, strict=True))


def test_variants_round_elsewhere_and_are_right(sums: dict[str, Run]) -> None:
    assert set(sums) == {"baseline", "exact", "reordered", "wider"}
    truth = sums["baseline"]
    for name, run in sums.items():
        if name != "baseline":
            assert any(
                not torch.equal(run.outputs[rank][leaf], value)
                for rank, outputs in enumerate(truth.outputs)
                for leaf, value in outputs.items()
            ), name
        assert all(0 <= shares.top < 1 for shares in _shares([(truth, run)]).values()), name


def test_a_share_is_above_1_where_the_rule_refuses(sums: dict[str, Run]) -> None:
    truth = sums["baseline"]
    wrong = dataclasses.replace(truth, outputs=[{n: 1.5 * v for n, v in out.items()} for out in truth.outputs])
    for (output, _), shares in _shares([(truth, wrong)]).items():
        refused = sum(int(truth.wrong(rank, output, wrong.outputs[rank][output]).sum()) for rank in range(4))
        assert refused and int((shares.largest > 1).sum()) == refused


def test_the_largest_shares_are_kept() -> None:
    shares = Shares()
    for values in (torch.linspace(0, 1, 1500), torch.tensor([LARGEST_SHARE])):
        shares.add(values)
    assert (shares.count, shares.top, shares.largest.numel()) == (1501, LARGEST_SHARE, 1000)
    assert float(shares.largest.min()) > 0.3


def test_the_page_is_that_of_the_result_and_no_right_kernel_was_refused() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == render(result), "run `python -m benchmarks.false_alarms_report`"
    refused = {(row["problem"], rule["output"]) for row in result["rows"] for rule in row["rules"] if rule["share"] > 1}
    assert not refused
