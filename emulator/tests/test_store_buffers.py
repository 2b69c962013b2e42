"""Stores that take effect late, and in other orders: kernels of `store_buffers.cu` under the policy `late_stores`."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.litmus.compare import Compared
from emulator.tests.litmus.emulate import observe
from emulator.tests.litmus.families import programs
from emulator.tests.litmus.verdicts import verdict
from rank_emulator import Outcome, Schedule, World, compile_cuda

SOURCE = Path(__file__).with_name("store_buffers.cu")
WORDS = 512
SEEN = 96
FEW, MANY = 20, 100
"""Seeds among which one shows what may happen, and that all show what must."""

MAY_OVERTAKE = [
    "relaxed_flag",
    "relaxed_data_and_flag",
    "volatile_flag",
    "weak_flag",
    "relaxed_atomic",
    "fence_of_the_block",
    "fence_of_the_gpu",
    "release_of_the_gpu",
    "barrier_and_relaxed_flag",
    "fence_before_the_barrier_of_another",
    "data_after_the_release",
]
"""A reader that has seen the flag may find old data."""

ORDERED = [
    "release_store",
    "fence_and_relaxed_flag",
    "threadfence_and_volatile_flag",
    "release_atomic",
    "release_reduction",
    "acquire_release_exchange",
    "release_to_a_peer",
    "fence_of_the_system",
    "barrier_and_release",
    "barrier_and_fence",
    "fences_of_all_before_the_barrier",
    "arrival_at_a_named_barrier",
    "warp_barrier_and_release",
    "mbarrier_and_release",
    "from_hand_to_hand",
    "from_hand_to_a_peer",
    "seen_by_the_block_then_released",
    "one_instruction_with_data_and_flag",
    "asynchronous_copy_behind_a_proxy_fence",
    "two_kernels",
]
"""It never does."""

COHERENT = [
    "reads_of_one_place_go_on",
    "last_store_stays",
    "last_store_of_the_block_stays",
    "own_stores_are_read",
    "atomics_see_own_stores",
]
"""They store 42 if loads and stores of one place are in one order."""

TO_A_PEER = {
    "fence_of_the_gpu",
    "release_of_the_gpu",
    "release_to_a_peer",
    "fence_of_the_system",
    "from_hand_to_a_peer",
}


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> bytes:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return compile_cuda(SOURCE.read_text())


def words_seen(
    path: Path | None,
    library: bytes,
    name: str,
    seeds: range,
    *,
    policy: str = "late_stores",
    detect_races: bool = False,
) -> Iterator[int]:
    """What the kernel has seen under each seed, on two ranks in one world."""
    assert path is not None
    with World(path, 2, detect_races=detect_races) as world:
        segments = [np.frombuffer(world.memory(rank), np.int32)[:WORDS] for rank in (0, 1)]

        def body(rank: int) -> None:
            program = programs[rank] or world.load(library)
            programs[rank] = program
            launch = getattr(program, name if name == "two_kernels" else f"launch_{name}")
            launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            assert launch(world.segments[rank], world.segments[1 - rank], rank, world.stream()) == 0
            world.synchronize()

        programs: list[ctypes.CDLL | None] = [None, None]
        for seed in seeds:
            for segment in segments:
                segment[:] = 0
            world.set_schedule(Schedule(policy, seed), max_seconds=60)  # type: ignore[arg-type]
            ended = world.run(body)
            assert ended.outcome == Outcome.OK, (seed, ended.message, ended.errors)
            yield int(segments[name in TO_A_PEER][SEEN])
        if detect_races:
            found = world.findings().findings
            assert [finding.message for finding in found if finding.finding_class != "benign"] == []
        del segments


@pytest.mark.parametrize("name", MAY_OVERTAKE)
def test_a_flag_overtakes_what_no_release_holds_before_it(
    emulator_path: Path | None, library: bytes, name: str
) -> None:
    assert 0 in words_seen(emulator_path, library, name, range(FEW))


@pytest.mark.parametrize("name", ORDERED)
def test_a_release_holds_the_data_before_the_flag(emulator_path: Path | None, library: bytes, name: str) -> None:
    seeds = range(500 if name == "release_store" else MANY)
    assert set(words_seen(emulator_path, library, name, seeds)) == {42}


@pytest.mark.parametrize("name", COHERENT)
def test_loads_and_stores_of_one_place_are_in_one_order(emulator_path: Path | None, library: bytes, name: str) -> None:
    assert set(words_seen(emulator_path, library, name, range(MANY))) == {42}


@pytest.mark.parametrize("name", ["relaxed_flag", "overtaken_reset"])
def test_other_policies_let_stores_take_effect_at_once(emulator_path: Path | None, library: bytes, name: str) -> None:
    seen = set(words_seen(emulator_path, library, name, range(FEW), policy="mixed"))
    assert seen == {42 if name == "relaxed_flag" else 1}


def test_each_of_two_threads_may_miss_the_other_s_store(emulator_path: Path | None, library: bytes) -> None:
    """Store buffering: neither has seen the other's store, which a fence.sc of both rules out."""
    assert 200 in words_seen(emulator_path, library, "store_buffering", range(FEW))
    assert 200 not in set(words_seen(emulator_path, library, "store_buffering_with_sc_fences", range(MANY)))


def test_a_counter_counts_before_its_reset(emulator_path: Path | None, library: bytes) -> None:
    assert set(words_seen(emulator_path, library, "overtaken_reset", range(FEW))) > {1}
    assert set(words_seen(emulator_path, library, "reset_and_release", range(MANY))) == {1}


@pytest.mark.parametrize(
    "name", ["release_store", "barrier_and_fence", "from_hand_to_a_peer", "two_kernels", "equal_stores"]
)
def test_the_detector_finds_nothing_in_right_kernels(emulator_path: Path | None, library: bytes, name: str) -> None:
    for seed in range(FEW):  # the detector knows of no order between runs
        seen = words_seen(emulator_path, library, name, range(seed, seed + 1), detect_races=True)
        assert list(seen) == [42]


def test_a_seed_repeats_the_order_in_which_stores_take_effect(emulator_path: Path | None, library: bytes) -> None:
    first, again = (list(words_seen(emulator_path, library, "relaxed_flag", range(FEW))) for _ in range(2))
    assert first == again


def test_litmus_programs_show_weak_outcomes_that_the_axioms_allow_and_no_others(emulator_path: Path | None) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    some = random.Random(0).sample(list(programs()), 100)
    late = [Schedule("late_stores", seed) for seed in range(FEW)]
    seen = [
        Compared(program, verdict(program), observed)
        for program, observed in zip(some, observe(emulator_path, some, late), strict=True)
    ]
    assert [one.program for one in seen if one.impossible] == []
    weak = {one.program.family for one in seen if one.weak}
    assert weak >= {"MP", "SB"}, weak
