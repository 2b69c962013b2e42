"""The symmetric heap as the evaluator sees it, and what ranks leave in it for the evaluator to read."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import pytest

from pkb_gym.engine.gangs.heaps import DeviceHeap, SharedHeap, UnmetWait, describe_place, sealed_memory
from pkb_gym.engine.wire import abi

SEGMENT_BYTES = abi.SCRATCH_OFFSET + 4096
State = abi.State


def place(state: int, slot: int = 0, want: int = 0, call: int = 0) -> abi.Place:
    return abi.Place(state=state, slot=slot, want=want, call=call)


def write_at(fd: int, offset: int, data: bytes) -> None:
    """Writes through a mapping, like a rank."""
    with mmap.mmap(fd, 0) as view:
        view[offset : offset + len(data)] = data


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.IDLE, "in call 7"),
        (State.LOADING, "loading"),
        (State.AT_GATE, "before its first call"),
        (State.IN_CALL, "in call 7"),
        (State.DONE, "done"),
        (6, "in call 7"),
        (4_000_000_000, "in call 7"),
    ],
)
def test_where_a_rank_stands(state: int, words: str) -> None:
    assert describe_place(place(state, call=7), None) == words


def test_what_a_rank_waits_for() -> None:
    assert describe_place(place(State.WAITING, 5, 9, 2), 8) == "waits in call 2 for signal 5 to be at least 9; it is 8"
    assert describe_place(place(State.WAITING, 5, 9, 2), None) == "waits in call 2 for signal 5 to be at least 9"
    assert describe_place(place(State.WAITING, abi.USER_SIGNALS - 1, 1), None).startswith("waits in call 0 for signal")
    barrier = place(State.WAITING, abi.USER_SIGNALS + 2 * abi.MAX_RANKS + 3, 4, 1)
    assert describe_place(barrier, 0) == "waits in barrier 4 of call 1 for place 3 of the group"


@pytest.mark.parametrize("slot", [-1, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("state", [*State, 2**32 - 1])
def test_nonsense_from_a_rank_is_described_too(state: int, slot: int) -> None:
    words = describe_place(place(state, slot, 2**64 - 1, 2**64 - 1), None)
    assert words and "\n" not in words and len(words) < 120


@pytest.mark.parametrize("slot", [-1, -(2**31), abi.USER_SIGNALS + abi.BARRIER_SIGNALS, 2**31 - 1])
def test_a_signal_that_does_not_exist_is_not_looked_up(slot: int) -> None:
    with SharedHeap(SEGMENT_BYTES, 2) as heap:
        write_at(heap.fds[0], SEGMENT_BYTES, bytes(place(State.WAITING, slot, 3, 1)))
        assert "waits in" in heap.place(1)


def test_each_rank_has_its_place_and_its_signals() -> None:
    with SharedHeap(SEGMENT_BYTES, 3) as heap:
        (fd,) = heap.fds
        for rank in range(3):
            begin = rank * SEGMENT_BYTES
            write_at(fd, begin + abi.PLACE_OFFSET, bytes(place(State.WAITING, 10 + rank, 100, rank)))
            write_at(fd, begin + abi.SIGNAL_OFFSET + 8 * (10 + rank), (40 + rank).to_bytes(8, "little"))
        assert [heap.place(rank) for rank in range(3)] == [
            f"waits in call {rank} for signal {10 + rank} to be at least 100; it is {40 + rank}" for rank in range(3)
        ]
        assert (heap.world_size, heap.segment_bytes, os.fstat(fd).st_size) == (3, SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    assert not is_open(fd)


def test_a_wait_is_unmet_until_its_signal_is_there() -> None:
    with SharedHeap(SEGMENT_BYTES, 2) as heap:
        (fd,) = heap.fds
        assert heap.unmet_wait(1) is None, "it reports none"
        write_at(fd, SEGMENT_BYTES + abi.PLACE_OFFSET, bytes(place(State.WAITING, 10, 7, 3)))
        write_at(fd, SEGMENT_BYTES + abi.SIGNAL_OFFSET + 8 * 10, (6).to_bytes(8, "little"))
        assert (heap.unmet_wait(0), heap.unmet_wait(1)) == (None, UnmetWait(call=3, slot=10, want=7))
        write_at(fd, SEGMENT_BYTES + abi.SIGNAL_OFFSET + 8 * 10, (7).to_bytes(8, "little"))
        assert heap.unmet_wait(1) is None
        write_at(fd, SEGMENT_BYTES + abi.PLACE_OFFSET, bytes(place(State.IN_CALL, 10, 8, 3)))
        assert heap.unmet_wait(1) is None


def test_ranks_meet_between_two_calls() -> None:
    """Their conductors decide the order, in a heap that no candidate maps."""
    with SharedHeap(SEGMENT_BYTES, 2) as conductors, SharedHeap(SEGMENT_BYTES, 2, conductors) as heap:
        begin = SEGMENT_BYTES + abi.PROGRESS_OFFSET
        write_at(conductors.fds[0], begin, bytes(abi.Progress(reached=2, arrived=1, waits_for_all=1)))
        assert (heap.unmet_wait(0), heap.unmet_wait(1)) == (None, UnmetWait(call=1, slot=None))
        assert (heap.place(0), heap.place(1)) == ("in call 0", "has finished call 0")
        write_at(conductors.fds[0], begin, bytes(abi.Progress(reached=2, arrived=2)))
        assert (heap.unmet_wait(1), heap.place(1)) == (None, "in call 0")


def segments(count: int) -> list[int]:
    return [os.memfd_create(f"segment {rank}") for rank in range(count)]


def test_places_on_gpus_are_read_from_the_control_pages() -> None:
    heap = DeviceHeap(2 << 20, segments(2))
    try:
        control, *_ = heap.fds
        assert (heap.world_size, heap.segment_bytes) == (2, 2 << 20)
        assert os.fstat(control).st_size == 2 * abi.HOST_CONTROL_BYTES
        begin = abi.HOST_CONTROL_BYTES + abi.PLACE_OFFSET
        write_at(control, begin, bytes(place(State.WAITING, 5, 9, 2)))
        assert [heap.place(rank) for rank in range(2)] == [
            "in call 0",
            "waits in call 2 for signal 5 to be at least 9",
        ]
        assert heap.unmet_wait(1) is None, "other blocks of the kernel may compute"
        write_at(control, begin, bytes(place(4_000_000_000, -1, 2**64 - 1, 3)))
        assert heap.place(1) == "in call 3"
    finally:
        heap.close()


def test_the_next_candidate_finds_fresh_control_pages() -> None:
    fds = segments(2)
    heap = DeviceHeap(2 << 20, fds)
    try:
        kept = os.dup(heap.fds[0])  # what the last candidate still maps
        heap.reset()
        write_at(kept, abi.PLACE_OFFSET, bytes(place(State.DONE)))
        os.close(kept)
        assert heap.place(0) == "in call 0"
        assert heap.fds[1:] == tuple(fds) and all(map(is_open, fds)), "the segments stay"
    finally:
        heap.close()


def test_all_descriptors_are_closed() -> None:
    before = set(os.listdir("/proc/self/fd"))
    heap = DeviceHeap(2 << 20, segments(3))
    heap.reset()
    assert len(heap.fds) == 4 and all(map(is_open, heap.fds))
    heap.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda fd: os.ftruncate(fd, 4096),
        lambda fd: os.ftruncate(fd, 1 << 20),
        lambda fd: os.pwrite(fd, b"x", 8192),
    ],
    ids=["shrink", "grow", "write beyond the end"],
)
def test_the_size_of_sealed_memory_is_fixed(change: Callable[[int], object]) -> None:
    fd = sealed_memory("test", 8192)
    try:
        with pytest.raises(PermissionError):
            change(fd)
        assert os.fstat(fd).st_size == 8192
        assert not os.get_inheritable(fd)
        os.pwrite(fd, b"x", 8191)
    finally:
        os.close(fd)
