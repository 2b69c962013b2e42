"""Who waits for a place gets it by priority, and nobody holds one that he left."""

from __future__ import annotations

import asyncio

from pkb_gym.cluster.waiting import Slots, Waiters
from pkb_gym.engine.evaluators.queue.entry import Entry


def of(priority: int = 0, client: str = "a") -> Entry[str]:
    entry: Entry[str] = Entry(key="k")
    entry.want(client, priority, 60)
    return entry


def test_higher_priorities_go_first_and_equal_ones_as_they_came():
    async def play() -> list[str]:
        slots, order = Slots(1), []
        started, all_wait = asyncio.Event(), asyncio.Event()

        async def work(name: str, priority: int) -> None:
            async with slots.slot(of(priority)):
                started.set()
                order.append(name)
                await all_wait.wait()

        tasks = [asyncio.create_task(work("first", 0))]
        await started.wait()
        tasks += [asyncio.create_task(work(*each)) for each in (("low", 0), ("high", 5), ("high too", 5), ("mid", 1))]
        while len(slots.waiting) < 4:
            await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks)
        assert slots.busy == len(slots.waiting) == 0
        return order

    assert asyncio.run(play()) == ["first", "high", "high too", "mid", "low"]


def test_clients_of_one_priority_take_turns():
    async def play() -> list[str]:
        slots, order = Slots(1), []

        async def work(client: str) -> None:
            async with slots.slot(of(client=client)):
                order.append(client)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(client) for client in ["many"] * 4 + ["few"] * 2))
        return order

    assert asyncio.run(play()) == ["many", "many", "few", "many", "few", "many"], "the first of many holds the slot"


def test_no_more_at_a_time_than_there_are_slots():
    async def play() -> int:
        slots, most = Slots(2), 0

        async def work() -> None:
            nonlocal most
            async with slots.slot(of()):
                most = max(most, slots.busy)
                await asyncio.sleep(0)

        first = [asyncio.create_task(work()) for _ in range(10)]
        await asyncio.gather(*first)
        assert most == 2
        slots.resize(5)
        await asyncio.gather(*(work() for _ in range(10)))
        return most

    assert asyncio.run(play()) == 5


def test_a_cancelled_waiter_takes_no_slot():
    async def play() -> None:
        slots = Slots(1)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with slots.slot(of()):
                entered.set()
                await leave.wait()

        holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
        await entered.wait()
        await asyncio.sleep(0)
        assert len(slots.waiting) == 1
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert len(slots.waiting) == 0
        leave.set()
        await holder
        assert slots.busy == 0

    asyncio.run(play())


def test_a_slot_that_comes_with_the_cancellation_is_handed_on():
    async def play() -> None:
        slots = Slots(1)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with slots.slot(of()):
                entered.set()
                await leave.wait()

        async def pass_by() -> None:
            async with slots.slot(of()):
                raise AssertionError("it was cancelled before")

        holder, waiter = asyncio.create_task(hold()), asyncio.create_task(pass_by())
        await entered.wait()
        await asyncio.sleep(0)
        slots.resize(2)  # serves the waiter, whose task has not run yet
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert slots.busy == 1
        leave.set()
        await holder

    asyncio.run(play())


def test_all_who_wait_can_be_answered():
    async def play() -> list[object]:
        waiters: Waiters[str] = Waiters()
        futures = [waiters.add(of(priority)) for priority in (1, 2)]
        futures[0].cancel()
        waiters.fail(RuntimeError("no room"))
        assert not waiters.serve("place")
        return await asyncio.gather(*futures, return_exceptions=True)

    cancelled, failed = asyncio.run(play())
    assert isinstance(cancelled, asyncio.CancelledError) and str(failed) == "no room"
