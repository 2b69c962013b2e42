"""Changes of other threads wake those that wait in an event loop, and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time

from pkb_gym.engine.evaluators.queue.listeners import Flag, Listeners, wait_until


def test_a_change_in_a_thread_ends_a_wait():
    changed, values = Listeners(), []

    def change() -> None:
        for value in range(3):
            values.append(value)
            changed.notify()

    async def wait() -> None:
        threading.Timer(0.02, change).start()
        await wait_until(lambda: len(values) == 3, [changed, Flag()], 30)

    asyncio.run(wait())
    assert values == [0, 1, 2] and not changed.has_listeners


def test_a_wait_ends_with_its_time_and_at_once_where_nothing_is_to_be_waited_for():
    flag = Flag()

    async def wait() -> float:
        began = time.monotonic()
        await wait_until(lambda: flag.is_set, [flag], 0.05)
        waited = time.monotonic() - began
        flag.set()
        await wait_until(lambda: flag.is_set, [flag], 30)
        return waited

    assert 0.05 <= asyncio.run(wait()) < 20 and not flag.has_listeners
