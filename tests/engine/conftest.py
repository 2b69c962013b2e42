"""The processes of the evaluator that all tests share."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.evaluators.local import LocalEvaluator


@pytest.fixture(scope="session")
def gang_pool(local_evaluator: LocalEvaluator) -> GangPool:
    return local_evaluator._pool
