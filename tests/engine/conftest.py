"""The processes of the evaluator that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.evaluators.local import LocalEvaluator


@pytest.fixture(scope="session")
def gang_pool(local_evaluator: LocalEvaluator) -> GangPool:
    return local_evaluator._pool


@pytest.fixture
def locks_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the test's own, so that neither it nor an evaluator beside it waits for the other."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
