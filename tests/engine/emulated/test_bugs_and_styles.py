"""Races that have shipped in libraries, rebuilt as kernels in candidates/cuda/races: each is found within few seeds.

A comment `// right: ...` in such a kernel is the statement that it lacks, or the one instead of its line.
Honest kernels of many ways to synchronise, in candidates/cuda/styles, are right, and the detector has no finding, or a
warning where a comment `// edge: ...` names what PTX asks for.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulated.compiled_together import compile_of_many
from tests.engine.emulated.joined import joined_config, joined_source

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
BUGS = candidates("cuda/races")
WHOLE = bool(os.environ.get("PKB_TEST_EMULATED"))
SEEDS = 2 if WHOLE else 1
WORDS = {
    "scope": "flag with .gpu scope",
    "departure": "let rank",
    "fence_scope": "has a fence of too small a scope beside it: use .sys",
    "no_synchronisation": "no flag or barrier leads from the first to the second",
    "release": "is stored without release order, and its thread executes no fence of",
    "acquire": "is loaded without acquire order, and its thread executes no fence of",
    "block_barrier": "two warps of one block without __syncthreads() between",
    "proxy_fence": "execute fence.proxy.async",
    "weak_flag": "plain",
    "grid_dependency": "lets it overlap the kernels before it: call cudaGridDependencySynchronize()",
    "stream_order": "two streams of one rank, which nothing orders: wait for an event",
}
"""Edge that is missing -> words of the remedy."""
WEAK = ("scope", "fence_scope", "release", "acquire")
"""Edges without which a flag leads from one access to the other, though not by PTX."""


LACKING = re.compile(r"^( *).*// right: (.*)$", re.MULTILINE)


def mended(bug: Candidate) -> Candidate:
    """The kernel with the statement that it lacks."""
    source = LACKING.sub(r"\1\2", bug.source)
    return replace(bug, source=source, path=bug.path.with_name(f"mended_{bug.path.name}"), outcome="passed")


MENDED = [mended(bug) for bug in BUGS if LACKING.search(bug.source)]
STYLES = candidates("cuda/styles")
NEEDED = {
    "barrier_that_turns_its_sense": ("    __threadfence();\n    if (atomicAdd", "    if (atomicAdd"),
    "pipeline_of_a_block": ("      pipeline.consumer_wait();\n", ""),
    "puts_with_counted_signals": (
        "__threadfence_system();\n  __syncthreads();\n  if (int(threadIdx.x) < W) {\n    __threadfence_system();",
        "__syncthreads();\n  if (int(threadIdx.x) < W) {",
    ),
    "semaphore_in_turn": ("st.global.release.gpu.b32", "st.relaxed.gpu.global.b32"),
    "spin_lock": ("  __threadfence();\n  atomicExch", "  atomicExch"),
    "ticket_lock": ("  __threadfence();\n  *static_cast", "  *static_cast"),
    "waits_that_notify": ("memory_order_release", "memory_order_relaxed"),
}
"""Style -> text that it needs, and what stands there instead in a kernel that is wrong."""


def broken(style: Candidate) -> Candidate:
    """The kernel without what it needs."""
    needed, instead = NEEDED[style.path.stem]
    assert style.source.count(needed) == 1
    source = style.source.replace(needed, instead)
    return replace(style, source=source, path=style.path.with_name(f"broken_{style.path.name}"), outcome="race")


BROKEN = [broken(style) for style in STYLES if style.path.stem in NEEDED]
SHOWN_MENDED = MENDED[:: 1 if WHOLE else 3]
SHOWN_STYLES = [style for number, style in enumerate(STYLES) if WHOLE or number % 6 == 0 or "edge" in style.options]
SHOWN_BROKEN = BROKEN[:: 1 if WHOLE else 3]
"""Those that run; all of them by `make emulated`."""
ALL = [*BUGS, *SHOWN_MENDED, *SHOWN_STYLES, *SHOWN_BROKEN]
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
        "dependent_launch_without_wait",
        "fence_of_one_gpu",
        "first_block_signals_for_all",
        "flag_before_the_block_is_done",
        "flag_of_gpu_scope",
        "last_block_without_a_fence",
        "missing_barrier_small_input",
        "same_value_stored",
        "tile_loaded_again_without_proxy_fence",
        "ll_buffer_without_parity",
        "polls_without_a_fence",
        "returns_before_peers_have_read",
        "second_stream_without_an_event",
        "two_shot_without_exit_barrier",
    }
    assert len(MENDED) == 9
    assert all(bug.options.keys() >= {"edge"} for bug in BUGS if bug.outcome == "race")


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.path.stem)
def test_it_is_found_with_its_line(local_evaluator: LocalEvaluator, bug: Candidate, seed: int) -> None:
    is_weak = bug.options.get("edge") in WEAK
    feedback = evaluate(local_evaluator, bug, seed=seed, race_check="strict" if is_weak else "on")
    assert feedback.failure in bug.outcome.split("|"), feedback.message
    if "edge" not in bug.options:
        return
    assert WORDS[bug.options["edge"]] in feedback.message
    line = next(at for at, text in enumerate(bug.source.splitlines(), 1) if text.endswith("// race"))
    assert f"{bug.path.name}:{line}" in feedback.message


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.options.get("edge") in WEAK], ids=lambda bug: bug.path.stem)
def test_a_weak_order_fails_by_default_where_late_stores_show_it(
    local_evaluator: LocalEvaluator, bug: Candidate, seed: int
) -> None:
    """What they do not show is a warning, on the card and in an agent's text: loads are never late, and the barrier
    before the counter of `last_block_without_a_fence` has released the data."""
    feedback = evaluate(local_evaluator, bug, seed=seed)
    assert feedback.emulation is not None
    found = feedback.emulation.findings[0]
    assert found.finding_class == "weak_order" and WORDS[bug.options["edge"]] in found.text and found.exposure
    if bug.options["edge"] in ("acquire", "release"):
        assert feedback.passed, feedback.message
        assert f"warning, no failure by itself: {found.text}" in feedback_text(feedback)
    else:
        assert feedback.failure is Failure.RACE and feedback.race is not None and feedback.race.kind == "unordered"
        assert "under schedule late_stores" in feedback.message and found.text in feedback.message


@pytest.mark.parametrize("kernel", SHOWN_MENDED, ids=lambda kernel: kernel.path.stem)
def test_with_what_it_lacks_it_is_right(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    feedback = evaluate(local_evaluator, kernel, race_check="on")
    assert feedback.passed, feedback.message


@pytest.mark.parametrize("kernel", SHOWN_BROKEN, ids=lambda kernel: kernel.path.stem)
def test_without_what_it_needs_a_style_is_a_race(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    assert len(BROKEN) == len(NEEDED)
    feedback = evaluate(local_evaluator, kernel, race_check="strict")
    assert feedback.failure is Failure.RACE, feedback.message


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["ll_buffer_without_parity", "returns_before_peers_have_read"])
def test_a_schedule_shows_it_without_the_detector(local_evaluator: LocalEvaluator, name: str, seed: int) -> None:
    bug = next(bug for bug in BUGS if bug.path.stem == name)
    feedback = evaluate(local_evaluator, bug, seed=seed, race_check="off")
    assert feedback.failure in (Failure.DEADLOCK, Failure.RACE, Failure.OUTPUT_MISMATCH), feedback.message


@pytest.mark.parametrize("kernel", SHOWN_STYLES, ids=lambda kernel: kernel.path.stem)
def test_a_style_passes_without_a_finding_that_fails(local_evaluator: LocalEvaluator, kernel: Candidate) -> None:
    feedback = evaluate(local_evaluator, kernel, race_check="on")
    assert feedback.passed, feedback.message
    assert feedback.emulation is not None
    found = [found for found in feedback.emulation.findings if found.finding_class != "benign"]
    assert bool(found) == ("edge" in kernel.options), found
    for warning in found:
        assert warning.finding_class == "weak_order" and WORDS[kernel.options["edge"]] in warning.text
