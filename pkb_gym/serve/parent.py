"""Ending with the process that started this one."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


def when_parent_ends(call: Callable[[], None]) -> None:
    """Has a function called, in a thread, once the parent process has ended, however it did.

    A pidfd reports the end of the whole process. The signal of prctl(PR_SET_PDEATHSIG) would come as soon as the
    thread ends that started this process, while the parent itself goes on.
    """
    parent = os.getppid()
    try:
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        call()
        return
    if os.getppid() != parent:  # it ended before it could be watched
        os.close(pidfd)
        call()
        return

    def watch() -> None:
        select.select([pidfd], [], [])
        os.close(pidfd)
        call()

    threading.Thread(target=watch, name="pkb-parent", daemon=True).start()
