"""Races that have shipped in libraries, rebuilt as kernels in candidates/cuda/races: each is found within few seeds.

A comment `// right: ...` in such a kernel is the statement that it lacks, or the one instead of its line.
Honest kernels of many ways to synchronise, in candidates/cuda/styles, are right, and the detector has no finding.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulated.compiled_together import compile_of_many
from tests.engine.emulated.joined import joined_config, joined_source

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
BUGS = candidates("cuda/races")
SEEDS = 2
WORDS = {
    "scope": "flag with .gpu scope",
    "departure": "let rank",
    "fence_scope": "has a fence of too small a scope beside it: use .sys",
    "no_synchronisation": "no flag or barrier leads from the first to the second",
    "release": "is stored without release order, and without a fence after the data",
    "acquire": "is loaded without acquire order, and without a fence after it",
    "stream_order": "two streams of one rank, which nothing orders: wait for an event",
}
"""Edge that is missing -> words of the remedy."""


LACKING = re.compile(r"^( *).*// right: (.*)$", re.MULTILINE)


def mended(bug: Candidate) -> Candidate:
    """The kernel with the statement that it lacks."""
    source = LACKING.sub(r"\1\2", bug.source)
    return replace(bug, source=source, path=bug.path.with_name(f"mended_{bug.path.name}"), outcome="passed")


MENDED = [mended(bug) for bug in BUGS if LACKING.search(bug.source)]
STYLES = candidates("cuda/styles")
ALL = [*BUGS, *MENDED, *STYLES]
"""Compiled together."""


@functools.cache
def source_of_all() -> str:
    """The source that they share."""
    return joined_source(ALL)


@pytest.fixture(scope="module", autouse=True)
def together(compiled_before: Path) -> None:
    """The tests find it in the cache."""
    if nvcc_available():
        compile_of_many(source_of_all(), CompileCache.in_folder(compiled_before))


def evaluate(evaluator: LocalEvaluator, kernel: Candidate, **requested: object) -> Feedback:
    config = joined_config(ALL.index(kernel) + 1, kernel, timeout_s=60.0, compile_timeout_s=600.0, **requested)
    return evaluator.evaluate(find_problem("AllReduce"), source_of_all(), config)


def test_all_classes_are_there() -> None:
    assert {bug.path.stem for bug in BUGS} == {
        "fence_of_one_gpu",
        "first_block_signals_for_all",
        "flag_before_the_block_is_done",
        "flag_of_gpu_scope",
        "last_block_without_a_fence",
        "ll_buffer_without_parity",
        "polls_without_a_fence",
        "returns_before_peers_have_read",
        "second_stream_without_an_event",
        "two_shot_without_exit_barrier",
    }
    assert len(MENDED) == 6
    assert all(bug.options.keys() >= {"edge"} for bug in BUGS if bug.outcome == "race")


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.path.stem)
def test_it_is_found_with_its_line(local_evaluator: LocalEvaluator, bug: Candidate, seed: int) -> None:
    feedback = evaluate(local_evaluator, bug, seed=seed, detect_races=True)
    assert feedback.failure in bug.outcome.split("|"), feedback.message
    if "edge" not in bug.options:
        return
    assert WORDS[bug.options["edge"]] in feedback.message
    line = next(at for at, text in enumerate(bug.source.splitlines(), 1) if text.endswith("// race"))
    assert f"{bug.path.name}:{line}" in feedback.message


@pytest.mark.parametrize("kernel", MENDED, ids=lambda kernel: kernel.path.stem)
def test_with_what_it_lacks_it_is_right(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    feedback = evaluate(local_evaluator, kernel, detect_races=True)
    assert feedback.passed, feedback.message


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["ll_buffer_without_parity", "returns_before_peers_have_read"])
def test_a_schedule_shows_it_without_the_detector(local_evaluator: LocalEvaluator, name: str, seed: int) -> None:
    bug = next(bug for bug in BUGS if bug.path.stem == name)
    feedback = evaluate(local_evaluator, bug, seed=seed)
    assert feedback.failure in (Failure.DEADLOCK, Failure.RACE, Failure.OUTPUT_MISMATCH), feedback.message


@pytest.mark.parametrize("kernel", STYLES, ids=lambda kernel: kernel.path.stem)
def test_a_style_passes_without_a_finding(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    feedback = evaluate(local_evaluator, kernel, detect_races=True)
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None and feedback.emulation.findings == ()
