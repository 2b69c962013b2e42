"""One evaluator for all tests of the engine: its processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkb_gym.engine.local import LocalEvaluator
from pkb_gym.engine.ranks.sandbox import bubblewrap_works
from tests.leaks import Lasting, snapshot

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap, which does not work here")


@pytest.fixture(scope="session")
def evaluator(lasting: Lasting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    """Keeps its zygotes and reference gangs for the whole session, and nothing else."""
    before = snapshot().processes
    with LocalEvaluator(key=b"tests", cache_dir=tmp_path_factory.mktemp("cache")) as evaluator:
        evaluator.warm_up(2)
        evaluator.warm_up(4)
        for process in snapshot().processes - before:
            lasting.keep_process(lambda pid=process.pid: (pid,))
        yield evaluator
