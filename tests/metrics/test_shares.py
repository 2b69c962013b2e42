"""Shares of verdicts and mechanisms, by hand."""

from __future__ import annotations

import pytest

from pkb_gym.metrics.results import results_by_agent
from pkb_gym.metrics.shares import failure_modes, mechanism_usage
from tests.metrics.attempts import attempt


def shares(found):
    return {share.name: (share.count, pytest.approx(share.share.mean)) for share in found}


def test_every_attempt_has_one_verdict():
    (results,) = results_by_agent(
        [
            attempt(turn=0, failure="compile_error"),
            attempt(turn=1, failure="compile_error"),
            attempt(turn=2, speedup=1.0),
            attempt("Gather", failure="no_submission"),
            attempt("Scatter", failure="infrastructure"),
        ]
    )
    found = failure_modes(results)
    assert shares(found) == {
        "compile_error": (2, 0.4),
        "infrastructure": (1, 0.2),
        "no_submission": (1, 0.2),
        "passed": (1, 0.2),
    }
    assert found[0].share.clusters == 3


def test_mechanisms_are_those_of_the_best_right_kernel():
    (results,) = results_by_agent(
        [
            attempt(turn=0, speedup=1.0, mechanisms=("copy engine",)),
            attempt(turn=1, speedup=2.0, mechanisms=("TMA", "SM load/store")),
            attempt(sample=1, speedup=1.0, mechanisms=("NCCL",), library=True),
            attempt("Gather", speedup=1.0, library=True),
            attempt("Scatter", speedup=1.0),
            attempt("Scatter", sample=1),
        ]
    )
    assert shares(mechanism_usage(results)) == {
        "NCCL": (1, 0.25),
        "SM load/store": (1, 0.25),
        "TMA": (1, 0.25),
        "library collectives": (1, 0.25),
        "not reported": (1, 0.25),
    }


def test_without_a_right_kernel_no_mechanism_is_used():
    (results,) = results_by_agent([attempt()])
    assert mechanism_usage(results) == ()
