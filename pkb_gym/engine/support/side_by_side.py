"""Work on many tasks at once, on threads that an interrupted process does not wait for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")

ENDING_S = 3.0
"""The time that work that was broken off may take to notice."""


@contextmanager
def side_by_side(
    tasks: Sequence[Task], work: Callable[[Task], Found], jobs: int, *, name: str, give_up: Callable[[], None]
) -> Iterator[queue.SimpleQueue[tuple[Task, Found | BaseException]]]:
    """Threads that put one result for each task, in the order in which they come, or the error that the work raised.

    Args:
        tasks: Tasks, begun in order.
        work: Function that does one task.
        jobs: Number of threads, at least 1.
        name: Name of the threads.
        give_up: Function that ends the work under way, called where the block is left early, for example by Ctrl-C.
    """
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Task, Found | BaseException]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def work_on_all() -> None:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((task, work(task)))
            except BaseException as error:  # noqa: BLE001  # raised again where the result is read
                done.put((task, error))

    # Daemons, so that one that is stuck cannot keep an interrupted process alive.
    threads = [threading.Thread(target=work_on_all, name=f"{name}-{i}", daemon=True) for i in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        yield done
    except BaseException:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        give_up()
        raise
    finally:
        deadline = time.monotonic() + ENDING_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
