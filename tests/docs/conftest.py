"""One evaluator for all pages: its processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from pkb_gym.engine.local import LocalEvaluator
from tests.leaks import Lasting


@pytest.fixture(scope="package")
def evaluator(tmp_path_factory: pytest.TempPathFactory, lasting: Lasting) -> Iterator[LocalEvaluator]:
    before = {child.pid for child in psutil.Process().children()}
    with LocalEvaluator(cache_dir=tmp_path_factory.mktemp("cache")) as local:
        local.warm_up(2)
        started = [child.pid for child in psutil.Process().children() if child.pid not in before]
        for pid in started:
            lasting.keep_process(pid)
        yield local
