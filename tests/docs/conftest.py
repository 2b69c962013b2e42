"""Pages are judged by the evaluator that all tests share."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator


@pytest.fixture
def evaluator(local_evaluator: LocalEvaluator) -> LocalEvaluator:
    """Short name for the pages' tests."""
    return local_evaluator
