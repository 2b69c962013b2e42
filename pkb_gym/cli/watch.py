"""`pkb eval --watch`: one evaluation after each save, and what has changed since the one before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.timing import Timing

POLL_S = 0.2
MIN_S = 0.05
"""Stages that took less in both evaluations are not printed."""


def saved_texts(read: Callable[[], str], path: Path) -> Iterator[str]:
    """The text of a file now, and after each save that changes it; never ends.

    Editors replace a file by another or write it in pieces: while it is gone or changes, it is looked at again.

    Args:
        read: Function that reads the file.
        path: Path of the file.
    """
    shown: str | None = None
    seen: tuple[int, int, int] | None = None
    while True:
        now = _stamp(path)
        if now is not None and now != seen:
            with contextlib.suppress(ConfigError):  # gone again
                text = read()
                if _stamp(path) == now:  # whole
                    seen = now
                    if text != shown:
                        shown = text
                        yield text
        sleep(POLL_S)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def changes(before: Feedback, now: Feedback) -> str:
    """A line on what has changed: the verdict, the speedup with its interval, and the time of each stage."""
    was, verdict = _verdict(before), _verdict(now)
    parts = [verdict if was == verdict else f"{verdict} (was {was})"]
    if now.timing is not None:
        parts.append(_speedup_change(before.timing, now.timing))
    elif before.timing is not None:
        parts.append(f"no speedup (was {_speedup(before.timing)})")
    for name in dict.fromkeys([*now.durations_s, *before.durations_s]):
        old, new = before.durations_s.get(name, 0.0), now.durations_s.get(name, 0.0)
        if max(old, new) >= MIN_S:
            parts.append(f"{name} {new:.2f} s (was {old:.2f})")
    return "since the last: " + "; ".join(parts)


def _verdict(feedback: Feedback) -> str:
    return "passed" if feedback.passed else str(feedback.failure)


def _speedup_change(before: Timing | None, now: Timing) -> str:
    if before is None:
        return f"speedup {_speedup(now)}"
    if now.leading.low > before.leading.high:
        change = "faster"
    elif now.leading.high < before.leading.low:
        change = "slower"
    else:
        change = "no difference beyond the noise"
    return f"speedup {_speedup(now)}, was {_speedup(before)}: {change}"


def _speedup(timing: Timing) -> str:
    leading = timing.leading
    return f"{leading.speedup:.2f}x [{leading.low:.2f}, {leading.high:.2f}]"
