"""Kernels on emulated GPUs: the verdict of each mistake with its rank and line, and the same again by the same seed."""

from __future__ import annotations

import functools
from enum import IntEnum
from pathlib import Path

import gymnasium as gym
import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators import local
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.stages.progress import BUILDING
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.problems.catalogue import find_problem

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "emulator.md"
SOURCE = Path(__file__).with_name("mistakes.cu").read_text(encoding="utf-8")


class Mistake(IntEnum):
    """The mistakes of mistakes.cu."""

    NONE = 1
    WRONG_VALUES = 2
    OUT_OF_BOUNDS = 3
    MISALIGNED = 4
    LOST_SIGNAL = 5
    EARLY_READ = 6
    LATE_READ = 7
    HOST_CRASH = 8
    THROWS = 9
    BEYOND_TENSOR = 10
    UNWRITTEN = 11
    DIVERGENT_BARRIER = 12
    LEAKED_PHASE = 13
    SCATTERED = 14
    ONE_BANK = 15
    UNREAD_COPY = 16
    PRINTS = 17
    THREAD_CRASH = 18


def evaluate(evaluator: LocalEvaluator, mistake: Mistake, **requested: object) -> Feedback:
    config = {"device": "emulated", "world_size": 2, "size": {"M": int(mistake), "N": 96}, "compile_timeout_s": 600.0}
    return evaluator.evaluate(find_problem("AllReduce"), SOURCE, EvalConfig.model_validate(config | requested))


judge = functools.cache(evaluate)
"""The same, once for all tests that ask alike."""


def test_a_right_kernel_passes_the_check_and_is_not_timed(local_evaluator: LocalEvaluator) -> None:
    feedback = evaluate(local_evaluator, Mistake.NONE, race_check="on")
    assert feedback.passed and feedback.stage is Stage.CHECK and feedback.timing is None, feedback.message
    assert feedback.check is not None and feedback.check.trials == 14 and feedback.is_correct
    emulation = feedback.emulation
    assert emulation is not None and emulation.calls == 14 and emulation.warp_instructions > 1000
    assert emulation.findings == () and {link.owner for link in emulation.links} == {0, 1}
    assert feedback.compile is not None and feedback.compile.kernels[0].registers > 0
    assert Feedback.model_validate_json(feedback.model_dump_json()) == feedback
    assert "PASSED on emulated GPUs" in feedback_text(feedback)


@pytest.mark.parametrize("world_size", [1, 4])
def test_it_is_right_on_other_numbers_of_ranks(local_evaluator: LocalEvaluator, world_size: int) -> None:
    feedback = evaluate(local_evaluator, Mistake.NONE, world_size=world_size, trials=5)
    assert feedback.passed, feedback.message


INITIALISER = """
#include <cstdlib>
__device__ int limit;
static const int written = [] {
  const int seven = 7;
  int found = 0;
  const bool copied = cudaMemcpyToSymbol(limit, &seven, sizeof(seven)) == cudaSuccess;
  if (!copied || cudaMemcpyFromSymbol(&found, limit, sizeof(found)) != cudaSuccess || found != 7) std::abort();
  return found;
}();
"""


def test_initialisers_of_a_library_may_wait_for_the_gpu(local_evaluator: LocalEvaluator) -> None:
    """The dynamic linker's lock is held meanwhile, for which no other rank may wait."""
    size = {"M": int(Mistake.NONE), "N": 96}
    config = EvalConfig(device="emulated", world_size=2, size=size, trials=5, compile_timeout_s=600.0)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), f"{SOURCE}{INITIALISER}", config)
    assert feedback.passed, feedback.message


@pytest.mark.parametrize(
    ("mistake", "failure", "rank", "words"),
    [
        (Mistake.WRONG_VALUES, Failure.OUTPUT_MISMATCH, 1, ["1 of 192 elements differ"]),
        (Mistake.OUT_OF_BOUNDS, Failure.RUNTIME_ERROR, 1, ["illegal address", "kernel sum", "kernel.cu:26"]),
        (Mistake.MISALIGNED, Failure.RUNTIME_ERROR, 1, ["misaligned", "kernel sum", "kernel.cu:27"]),
        (
            Mistake.LOST_SIGNAL,
            Failure.DEADLOCK,
            None,
            ["rank 0", "pkb::enqueued::wait<1>", "polls", "symm_cuda.h"],
        ),
        (Mistake.EARLY_READ, Failure.RACE, None, ["under schedule"]),
        (Mistake.LATE_READ, Failure.RACE, None, ["under schedule"]),
        (
            Mistake.HOST_CRASH,
            Failure.RUNTIME_ERROR,
            1,
            ["rank 1 was killed by SIGSEGV", "rank 1 stood at kernel.cu:64"],
        ),
        (
            Mistake.THREAD_CRASH,
            Failure.RUNTIME_ERROR,
            1,
            ["rank 1 was killed by SIGSEGV", "rank 1 stood at kernel.cu:65"],
        ),
        (Mistake.THROWS, Failure.RUNTIME_ERROR, 1, ["nothing doing"]),
    ],
)
def test_each_mistake_has_its_verdict(
    local_evaluator: LocalEvaluator, mistake: Mistake, failure: Failure, rank: int | None, words: list[str]
) -> None:
    feedback = judge(local_evaluator, mistake, race_check="off", trials=14)
    assert feedback.failure is failure, feedback.message
    assert rank is None or feedback.failed_rank == rank
    for word in words:
        assert word in feedback.message
    assert "std::" not in feedback.message, "frames of a thread's beginning"
    assert not feedback.is_correct


@pytest.mark.parametrize(("mistake", "line"), [(Mistake.EARLY_READ, 19), (Mistake.LATE_READ, 19)])
def test_the_detector_names_the_line_of_a_race(local_evaluator: LocalEvaluator, mistake: Mistake, line: int) -> None:
    feedback = judge(local_evaluator, mistake, race_check="on", trials=14)
    assert feedback.failure is Failure.RACE and feedback.race is not None
    assert feedback.race.kind == "unordered" and feedback.race.tensor in ("tensor", "out")
    assert f"kernel.cu:{line}" in feedback.message
    assert feedback.emulation is not None and feedback.emulation.findings[0].text in feedback.message


@pytest.mark.parametrize(
    ("mistake", "failure", "words", "line"),
    [
        (Mistake.BEYOND_TENSOR, Failure.RUNTIME_ERROR, "out of bounds", 21),
        (Mistake.UNWRITTEN, Failure.RUNTIME_ERROR, "which nobody has written", 22),
        (Mistake.DIVERGENT_BARRIER, Failure.DEADLOCK, "divergent barrier", 28),
        (Mistake.LEAKED_PHASE, Failure.RUNTIME_ERROR, "mbarrier leak", 32),
        (Mistake.UNREAD_COPY, Failure.RUNTIME_ERROR, "bulk copy leak", 44),
    ],
)
def test_the_detector_finds_errors_of_one_block(
    local_evaluator: LocalEvaluator, mistake: Mistake, failure: Failure, words: str, line: int
) -> None:
    feedback = judge(local_evaluator, mistake, race_check="on", trials=2)
    assert feedback.failure is failure, feedback.message
    assert words in feedback.message.splitlines()[0] and f"kernel.cu:{line}" in feedback.message.splitlines()[0]


@pytest.mark.parametrize(
    ("mistake", "words", "line"), [(Mistake.SCATTERED, "uncoalesced", 23), (Mistake.ONE_BANK, "bank conflicts", 35)]
)
def test_accesses_that_move_too_much_are_advice(
    local_evaluator: LocalEvaluator, mistake: Mistake, words: str, line: int
) -> None:
    feedback = judge(local_evaluator, mistake, race_check="on", trials=2)
    assert feedback.passed and feedback.emulation is not None, feedback.message
    found = [each for each in feedback.emulation.advice if words in each and f"kernel.cu:{line}" in each]
    assert found and found[0] in feedback_text(feedback)


SHOWN = [
    *((mistake, "off", 14) for mistake in (Mistake.OUT_OF_BOUNDS, Mistake.LOST_SIGNAL)),
    *((mistake, "on", 14) for mistake in (Mistake.EARLY_READ, Mistake.LATE_READ)),
    *((mistake, "on", 2) for mistake in (Mistake.BEYOND_TENSOR, Mistake.SCATTERED, Mistake.ONE_BANK)),
]


@pytest.mark.parametrize(("mistake", "race_check", "trials"), SHOWN)
def test_the_page_shows_it_as_it_prints(
    local_evaluator: LocalEvaluator, mistake: Mistake, race_check: str, trials: int
) -> None:
    feedback = judge(local_evaluator, mistake, race_check=race_check, trials=trials)
    assert feedback.emulation is not None
    page = PAGE.read_text(encoding="utf-8")
    lines = feedback.message.splitlines() or feedback.emulation.advice
    shown = lines[: 4 if mistake is Mistake.LOST_SIGNAL else 1]
    assert all(line in page for line in shown), "\n".join(lines)


def test_what_kernels_print_is_reported_with_the_rank(local_evaluator: LocalEvaluator) -> None:
    """Calls of vprintf did nothing."""
    feedback = judge(local_evaluator, Mistake.PRINTS, trials=2)
    assert feedback.passed, feedback.message
    rest = " 1.50|-7  |00ff|-1099511627776|1099511627776|x|text|   9|0.2|200|%"
    line = f"thread 0: {rest}thread 1: {rest} and"
    for rank in range(2):
        assert f"rank {rank}: {line}\nrank {rank}: on" in feedback.output
        assert f"rank {rank}: printf on the host of {rank}, cout to stderr\nrank {rank}: cerr\n" in feedback.output
    assert all(text.startswith("rank ") for text in feedback.output.splitlines())


def test_the_first_evaluation_says_that_the_emulator_is_compiled(
    local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a minute and more of "preparing ranks"."""
    config = EvalConfig(device="emulated", world_size=2, size={"M": int(Mistake.NONE), "N": 96}, trials=1)
    states: dict[bool, list[str]] = {True: [], False: []}
    for built, seen in states.items():
        monkeypatch.setattr(local, "is_built", lambda cache, built=built: built)
        assert local_evaluator.evaluate(find_problem("AllReduce"), SOURCE, config, seen.append).passed
    assert BUILDING in states[False] and BUILDING not in states[True]


def test_the_same_seed_repeats_a_run_to_the_instruction(local_evaluator: LocalEvaluator) -> None:
    first, again, other = (evaluate(local_evaluator, Mistake.NONE, seed=seed, trials=8) for seed in (7, 7, 8))
    assert first.emulation == again.emulation
    assert first.emulation is not None and other.emulation is not None
    assert first.emulation.schedules != other.emulation.schedules


def test_an_episode_is_judged_with_the_detector(local_evaluator: LocalEvaluator) -> None:
    observations, paid = {}, {}
    for mistake in (Mistake.EARLY_READ, Mistake.NONE):
        size = {"M": int(mistake), "N": 96}
        requested = {"device": "emulated", "world_size": 2, "size": size, "race_check": "on"}
        env = gym.make("PKB/AllReduce-v0", evaluator=local_evaluator, **requested).unwrapped
        env.reset(seed=0)
        observations[mistake], paid[mistake], _, _, info = env.step(SOURCE)
        assert observations[mistake] in env.observation_space
        assert info["feedback"].failure == (Failure.RACE if mistake is Mistake.EARLY_READ else None)
    assert "kernel.cu:19" in observations[Mistake.EARLY_READ]["feedback"]
    assert paid[Mistake.NONE] > paid[Mistake.EARLY_READ]
