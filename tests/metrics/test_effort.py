"""What the first right kernel takes, by hand."""

from __future__ import annotations

import pytest

from pkb_gym.metrics.effort import effort, usage_totals
from pkb_gym.metrics.results import results_by_agent
from tests.metrics.attempts import attempt

ATTEMPTS = [
    attempt("AllReduce", turn=0, tokens=100, cost_usd=1.0),
    attempt("AllReduce", turn=1, tokens=50, cost_usd=0.5, failure="no_submission"),
    attempt("AllReduce", turn=2, tokens=10, cost_usd=0.1, speedup=1.0),
    attempt("AllReduce", turn=3, tokens=1000, cost_usd=9.0, speedup=2.0),
    attempt("Gather", turn=0, tokens=7, cost_usd=0.2, speedup=3.0),
    attempt("Scatter", turn=0, tokens=33, cost_usd=0.3),
    attempt("Scatter", turn=1, tokens=33, cost_usd=0.3),
]
(RESULTS,) = results_by_agent(ATTEMPTS)


@pytest.mark.parametrize(
    ("quantity", "of_successes", "per_success"),
    [
        ("evaluations", (2 + 1) / 2, (2 + 1 + 2) / 2),
        ("completion_tokens", (160 + 7) / 2, (160 + 7 + 66) / 2),
        ("cost_usd", (1.6 + 0.2) / 2, (1.6 + 0.2 + 0.6) / 2),
    ],
)
def test_up_to_the_first_right_kernel(quantity, of_successes, per_success):
    """A reply without a submission costs tokens and no evaluation; later turns cost nothing here."""
    found = effort(RESULTS, quantity)
    assert found.of_successes.mean == pytest.approx(of_successes)
    assert found.per_success.mean == pytest.approx(per_success)
    assert found.per_success.clusters == 3


def test_a_quantity_of_no_attempt_is_unknown_and_not_zero():
    (results,) = results_by_agent([attempt(tokens=5), attempt(turn=1)])
    assert effort(results, "completion_tokens") is None
    assert effort(results, "evaluations").of_successes is None
    assert usage_totals(results).cost_usd is None


def test_everything_was_paid_for():
    found = usage_totals(RESULTS)
    assert (found.attempts, found.evaluations) == (7, 6)
    assert (found.prompt_tokens, found.completion_tokens, found.reasoning_tokens) == (12330, 1233, 0)
    assert found.cost_usd == pytest.approx(11.4) and found.evaluation_s == pytest.approx(6 * 0.5)
    assert found.reply_s is None
