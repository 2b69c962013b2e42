"""Races that have shipped in libraries, rebuilt as kernels in candidates/cuda/races: each is found within few seeds."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.emulator.joined import joined_config, joined_source

pytestmark = [
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(1800),  # the first compiles the emulator
]
BUGS = candidates("cuda/races")
SEEDS = 2
WORDS = {
    "scope": "flag with .gpu scope",
    "departure": "let rank",
}
"""Edge that is missing -> words of the remedy."""


def evaluate(evaluator: LocalEvaluator, bug: Candidate, **asked: object) -> Feedback:
    config = joined_config(BUGS.index(bug) + 1, bug, timeout_s=60.0, compile_timeout_s=600.0, **asked)
    return evaluator.evaluate(find_problem("AllReduce"), joined_source(BUGS), config)


def test_all_four_classes_are_there() -> None:
    assert {bug.path.stem for bug in BUGS} == {
        "flag_of_gpu_scope",
        "ll_buffer_without_parity",
        "returns_before_peers_have_read",
        "two_shot_without_exit_barrier",
    }
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


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["ll_buffer_without_parity", "returns_before_peers_have_read"])
def test_a_schedule_shows_it_without_the_detector(local_evaluator: LocalEvaluator, name: str, seed: int) -> None:
    bug = next(bug for bug in BUGS if bug.path.stem == name)
    feedback = evaluate(local_evaluator, bug, seed=seed)
    assert feedback.failure in (Failure.DEADLOCK, Failure.RACE, Failure.OUTPUT_MISMATCH), feedback.message
