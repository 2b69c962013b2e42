"""Every environment of these tests is judged by a fake evaluator, unless the test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkb_gym.envs.evaluator_registry import add_evaluator, close_evaluators
from tests.envs.fake_evaluator import FakeEvaluator


@pytest.fixture
def evaluator() -> Iterator[FakeEvaluator]:
    """Known to environments as "fake", as long as the test runs."""
    fake = FakeEvaluator()
    close_evaluators()
    add_evaluator("fake", lambda: fake)
    yield fake
    close_evaluators()
