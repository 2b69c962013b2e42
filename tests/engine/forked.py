"""Work that would leave its mark on the process of the tests."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> None:
    """Runs `work` in a forked child; what it raises fails the test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        error = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    assert not error, error
    assert status == 0, f"status {status}"
