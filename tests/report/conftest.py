"""A browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.leaks import Lasting
from tests.report.browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, lasting: Lasting) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    # Not of the session: it starts processes at will, and later tests would take them for left behind.
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    lasting.keep_process(opened.pid)
    yield opened
    opened.close()
