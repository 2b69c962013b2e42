"""Evaluations by several processes, each with an evaluator of its own, up to a deadline."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import chain, islice
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.serve.parent import when_parent_ends

Task = TypeVar("Task")
Result = TypeVar("Result")

END_S = 10.0
"""Longest that an ended process is waited for."""

LONGEST_WAIT_S = 3600.0
"""At once: a deadline may be infinite, which the platform's waits are not."""

_EVALUATORS: list[LocalEvaluator] = []
"""The evaluator of this process: one, once it has begun."""


def sharded(
    work: Callable[[LocalEvaluator, Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int,
    until_s: float,
    compiled: Path | None,
    key: bytes,
    prepare: Callable[[CompileCache], object] | None = None,
) -> Iterator[tuple[Task, Result]]:
    """The result of `work` for each task, as soon as it is there; tasks that are not done by the deadline are left out.

    The processes end with this one, however it ends. SIGTERM raises SystemExit meanwhile, so that it leaves no files.

    Args:
        work: a function of a module, in a process of its own.
        tasks: begun in this order; each is drawn when a process is free for it.
        jobs: number of processes.
        until_s: deadline, by `time.monotonic`; processes are ended then.
        compiled: folder that all processes keep what they compiled in; None: the user's cache.
        key: of the evaluators.
        prepare: what is done once, instead of by every process, before the first begins.
    """
    todo = iter(tasks)
    first = list(islice(todo, 1))
    if not first or time.monotonic() > until_s:
        return
    if prepare is not None:
        prepare(CompileCache.in_folder(compiled))
    todo = chain(first, todo)
    of_future: dict[Future[Result], Task] = {}
    folder = tempfile.TemporaryDirectory(prefix="shards-", ignore_cleanup_errors=True)
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(folder.name, compiled, key)
    )
    stack = contextlib.ExitStack()
    try:
        stack.enter_context(_ending_on_sigterm())
        while True:
            free = jobs - len(of_future) if time.monotonic() < until_s else 0
            for task in islice(todo, free):
                of_future[pool.submit(_work, work, task)] = task
            if not of_future:
                return
            left_s = max(0.0, until_s - time.monotonic())
            done, _ = wait(of_future, timeout=min(left_s, LONGEST_WAIT_S), return_when=FIRST_COMPLETED)
            if not done and left_s <= LONGEST_WAIT_S:
                return
            for future in done:
                yield of_future.pop(future), future.result()
    finally:
        pool.shutdown(wait=not of_future, cancel_futures=True)
        for child in active_children():
            child.terminate()
            child.join(timeout=END_S)
        del pool
        gc.collect()  # semaphores of a pool that was not waited for are removed with it, in a cycle
        folder.cleanup()
        stack.close()


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the main thread as an exception does, past everything that cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin(common: str, compiled: Path | None, key: bytes) -> None:
    when_parent_ends(lambda: os._exit(1))
    # Evaluators that share a folder for temporary files wait for each other's measurements.
    folder = Path(tempfile.mkdtemp(dir=common)) / "tmp"
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    _EVALUATORS.append(LocalEvaluator(key=key, cache_dir=compiled))


def _work(work: Callable[[LocalEvaluator, Task], Result], task: Task) -> Result:
    return work(_EVALUATORS[0], task)
