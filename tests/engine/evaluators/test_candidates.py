"""Every file of tests/candidates: its own named failure, in time, and what comes after it is none the worse.

That is the next evaluation, and the speedup of a good kernel after all attacks on the timing, beside that which an
evaluator finds that has met none of them. `make test` judges a sample of the good and the broken ones, half of the
attacks of each family, and the good kernel behind one of three; `make all` judges every one, and the good kernel behind
each attack.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.problems.catalogue import find_problem
from tests.engine.attacks import FAMILIES, members
from tests.engine.candidates import DEADLINE_S, FOLDER, Candidate, candidates, read
from tests.engine.compiling import compile_ahead
from tests.engine.joined_libraries import can_join, compile_together
from tests.leaks import SHM, used_by_others
from tests.waiting import until
from tests.whole_tables import sampled

ALL = [candidate for kind in ("good", "broken", "hostile") for candidate in candidates(kind)]
BY_AIM = {
    family.aim: sampled((each for each in members(family, on_gpus=False) if each.kind == "hostile"), 3)
    for family in FAMILIES
}
HOSTILE = [candidate for of_family in BY_AIM.values() for candidate in of_family]
JUDGED = [*sampled(candidates("good"), 12), *sampled(candidates("broken"), 3), *HOSTILE]
GOOD = read(FOLDER / "good" / "reads_peers.cpp")
FOLLOWED = {candidate.name for candidate in sampled(HOSTILE, 3)}
"""Names of attacks behind which the good kernel is judged."""
SLACK_S = 60.0
"""What an evaluation may take beyond its deadlines, on a machine that others use too."""

ON_TIMING = ("run while frozen", "be timed under better conditions", "exhaust the machine", "give an earlier answer")
ATTACKS = [candidate for aim in ON_TIMING for candidate in BY_AIM[aim]]
MAX_RATIO = 1.3
ATTEMPTS = 5
"""At most, of both evaluators in turn: other programs disturb a figure now and then; what an attack has left disturbs
each."""


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest, local_evaluator: LocalEvaluator, compiled_before: Path) -> None:
    """Compiles what is going to be tested; the tests find it in the cache."""
    mine = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    chosen = [item.callspec.params["candidate"] for item in mine if hasattr(item, "callspec")]
    native = [each for each in chosen if each.path.suffix == ".cpp" and each.outcome != "compile_error"]
    compile_together([each.source for each in native], CompileCache.in_folder(compiled_before))
    alone = [each for each in native if not can_join(each.source)]
    compile_ahead(local_evaluator, [(find_problem(each.problem), each.source, each.config) for each in alone])


@pytest.fixture(scope="module", autouse=True)
def nothing_left(local_evaluator: LocalEvaluator, gang_pool: GangPool) -> Iterator[None]:
    """After all of them: the processes are those from before, and no file is left."""
    evaluate(local_evaluator, GOOD)
    evaluate(local_evaluator, read(FOLDER / "good" / "reference.py"))
    local_evaluator.warm_up(4)
    local_evaluator.warm_up(1)
    before, files = descendants(), temporary_files(gang_pool)
    yield
    until(lambda: descendants() == before, "processes stay behind")
    left = temporary_files(gang_pool) - files
    assert not {path for path in left if not (Path(path).parent == SHM and used_by_others(Path(path).name))}


def descendants() -> set[psutil.Process]:
    return {child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


def temporary_files(pool: GangPool) -> set[str]:
    """Shared memory, and what lies in the working folders of this pool's gangs."""
    zygotes = [pool.zygote(trusted=trusted) for trusted in (True, False)]
    folders = [SHM, *(zygote.scratch for zygote in zygotes if not zygote.sandboxed)]
    return {str(path) for folder in folders if folder.is_dir() for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def evaluated() -> set[str]:
    """Names of candidates that tests before this one have evaluated."""
    return set()


def evaluate(evaluator: LocalEvaluator, candidate: Candidate) -> Feedback:
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, candidate.config)


def speedup(evaluator: LocalEvaluator) -> float:
    """Of the good kernel."""
    config = GOOD.config.model_copy(update={"until": "time", "timing_budget_s": 0.3})
    feedback = evaluator.evaluate(find_problem(GOOD.problem), GOOD.source, config)
    GOOD.assert_as_expected(feedback)
    assert feedback.timing is not None
    return feedback.timing.speedup


def needs_what_is_missing(candidate: Candidate) -> bool:
    return candidate.options.get("needs") == "bubblewrap" and not bubblewrap_works()


@pytest.mark.timeout(300)  # the first one compiles for all
@pytest.mark.parametrize("candidate", JUDGED, ids=lambda candidate: candidate.name)
def test_candidate(local_evaluator: LocalEvaluator, candidate: Candidate, evaluated: set[str]) -> None:
    if needs_what_is_missing(candidate):
        pytest.skip("needs bubblewrap: without it the machine's files, network or processes are within its reach")
    evaluated.add(candidate.name)
    for _ in range(2 if "twice" in candidate.options else 1):
        began = time.monotonic()
        feedback = evaluate(local_evaluator, candidate)
        took_s = time.monotonic() - began
        candidate.assert_as_expected(feedback)
        compile_s = feedback.durations_s.get("compile", 0.0)
        assert compile_s < candidate.config.compile_timeout_s + 1
        waited_s = feedback.durations_s.get(WAITING, 0.0)  # for compiles and checks of tests beside this one
        assert took_s - compile_s - waited_s < 2 * DEADLINE_S + SLACK_S
    if candidate.name in FOLLOWED:
        GOOD.assert_as_expected(evaluate(local_evaluator, GOOD))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_good_kernel_has_the_speedup_that_a_fresh_evaluator_finds(
    local_evaluator: LocalEvaluator, compiled_before: Path, evaluated: set[str]
) -> None:
    """Behind `test_candidate`, which runs the attacks too."""
    for candidate in ATTACKS:
        if candidate.name not in evaluated and not needs_what_is_missing(candidate):
            feedback = evaluate(local_evaluator, candidate)
            assert feedback.failure is not Failure.INFRASTRUCTURE, f"{candidate.name}: {feedback.message}"
    after: list[float] = []
    beside: list[float] = []
    with LocalEvaluator(cache_dir=compiled_before) as fresh:
        while len(after) < ATTEMPTS:
            beside.append(speedup(fresh))
            after.append(speedup(local_evaluator))
            if min(beside) / MAX_RATIO < after[-1] < max(beside) * MAX_RATIO:
                return
    pytest.fail(f"speedups of {after} after {len(ATTACKS)} attacks, of {beside} without them")


def test_what_a_candidate_wrote_holds_no_lines_of_the_profiler(local_evaluator: LocalEvaluator) -> None:
    python = read(FOLDER / "good" / "reference.py")
    config = python.config.model_copy(update={"until": "profile"})
    feedback = local_evaluator.evaluate(find_problem(python.problem), python.source, config)
    assert feedback.profile is not None and feedback.profile.hot_spots
    assert feedback.output == ""


def test_the_output_of_a_passing_candidate_is_reported_for_every_rank(local_evaluator: LocalEvaluator) -> None:
    """It stayed in buffers that nobody flushed: only failures that end their process were reported."""
    for name in ("writes_lines.cpp", "writes_lines.py"):
        feedback = evaluate(local_evaluator, read(FOLDER / "good" / name))
        assert feedback.passed, feedback.message
        lines = [line for line in feedback.output.splitlines() if "on rank" in line]
        assert sorted(lines) == [f"rank {rank}: \\x1b[32mgrün\\x1b[0m, 緑 on rank {rank}" for rank in range(2)]


def test_every_file_states_its_purpose() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        kind = candidate.path.parent.name
        assert kind != "good" or candidate.outcome == "passed", candidate.name
        assert kind != "broken" or candidate.outcome != "passed", candidate.name
