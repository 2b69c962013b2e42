"""Every file of tests/candidates/cuda on emulated GPUs: the verdict that GPUs give, or another with its reason.

`make test` takes a sample of those that can share a source, and `make emulated` all.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs import emulated_gang
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulated.compiled_together import compile_of_many
from tests.engine.emulated.joined import can_join, groups, joined_config, joined_source, lacking
from tests.engine.emulated.verdicts import DIFFERENT, WORDS, table

ALL = [
    candidate
    for kind in ("good", "broken", "hostile", "racy")
    for candidate in candidates(f"cuda/{kind}")
    if candidate.path.suffix == ".cu"
]
LIMITS = {
    "out_of_memory": (128 << 20, 768 << 20),
    "hostile/reads_what_others_freed.cu": (640 << 20, 4 << 30),
}
"""Outcome or name -> memory of a rank and of the emulator, where a rank takes what there is and looks at all of it."""

WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))
COSTLY = ("hostile/reads_what_others_freed.cu", "hostile/leaves_host_threads_spinning.cu")
"""Candidates that take seconds of processor time when they run."""

EVERY = 3
"""Of those that end soon, `make test` takes one of so many."""


def short_name(candidate: Candidate) -> str:
    return candidate.name.removeprefix("cuda/")


def is_quick(candidate: Candidate) -> bool:
    """Whether it is compiled with many others, and ends soon."""
    return can_join(candidate) and not lacking(candidate.source) and short_name(candidate) not in COSTLY


JUDGED = ALL if WHOLE else list(filter(is_quick, ALL))[::EVERY]
JOINED = groups(JUDGED)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "emulator.md"


def limits_of(candidate: Candidate) -> tuple[int, int] | None:
    """The limits of a candidate's emulation, from `LIMITS`."""
    return LIMITS.get(short_name(candidate)) or LIMITS.get(candidate.outcome)


@functools.cache
def compile_group(number: int, folder: Path) -> None:
    """Compiles the source of a group once, into this folder of caches."""
    compile_of_many(source_of_group(number), CompileCache.in_folder(folder))


@functools.cache
def source_of_group(number: int) -> str:
    """The source that the candidates of a group share."""
    return joined_source(JOINED[number])


def group_of(candidate: Candidate) -> int | None:
    """The number of its group, if it shares a source with others."""
    return next((number for number, group in enumerate(JOINED) if candidate in group and len(group) > 1), None)


def work_of(candidate: Candidate) -> tuple[Problem, str, EvalConfig]:
    """Its evaluation. The detector runs where synchronisation is the question."""
    requested: dict[str, object] = {
        "race_check": "on" if candidate.kind in ("good", "racy") else "off",
        "timeout_s": 10.0 if candidate.outcome == "timeout" else 60.0,
        "compile_timeout_s": 600.0,
    }
    if (limits := limits_of(candidate)) is not None:
        requested["memory_bytes"], _ = limits
    if (number := group_of(candidate)) is not None:
        config = joined_config(JOINED[number].index(candidate) + 1, candidate, **requested)
        return find_problem(candidate.problem), source_of_group(number), config
    alone = {"device": "emulated", "until": "check", "size": "tiny"} | requested
    config = EvalConfig.model_validate(candidate.config.model_dump() | alone)
    return find_problem(candidate.problem), candidate.source, config


@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
@pytest.mark.timeout(1800)  # the first compiles the emulator
@pytest.mark.parametrize("candidate", JUDGED, ids=short_name)
def test_its_verdict_is_that_of_gpus_or_is_explained(
    local_evaluator: LocalEvaluator, candidate: Candidate, compiled_before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (number := group_of(candidate)) is not None:
        compile_group(number, compiled_before)
    if (limits := limits_of(candidate)) is not None:
        monkeypatch.setattr(emulated_gang, "EMULATOR_BYTES", limits[1])
    feedback = local_evaluator.evaluate(*work_of(candidate))
    expected, _ = DIFFERENT.get(short_name(candidate), (candidate.outcome, ""))
    verdict = "passed" if feedback.passed else str(feedback.failure)
    assert verdict in expected.split("|"), f"{verdict}: {feedback.message}\n{feedback.output}"
    assert WORDS.get(short_name(candidate), "") in feedback.message


def test_the_page_shows_which_verdicts_differ_and_why() -> None:
    expected = {short_name(candidate): candidate.outcome for candidate in ALL}
    assert DIFFERENT.keys() <= expected.keys()
    for name, (verdict, reason) in DIFFERENT.items():
        assert verdict not in expected[name].split("|") and reason, name
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert f"the {len(ALL)} candidates in `tests/candidates/cuda`: {len(ALL) - len(DIFFERENT)} have" in page
