"""The evaluator of this machine: several at once, in a pause, closed, and without a GPU."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError, ReferenceOutOfMemory
from pkb_gym.engine.evaluators import gang_pool as gang_pool_module
from pkb_gym.engine.evaluators import gsan_check, local
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.evaluators.lanes import Need
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.rank_threads import wait_until_stopped
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.inputs import checked_calls
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.check_report import Race
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.race_check import JudgedRaces, RaceCheckReport
from pkb_gym.engine.records.replay_key import KEY_BYTES, NONCE_BYTES
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder, Stopped
from pkb_gym.engine.stages.machine_sharing import machine_to_itself
from pkb_gym.engine.stages.progress import CHECKING_RACES, PREPARING, UNDER_GSAN, WAITING
from pkb_gym.engine.stages.stopwatch import ENDING, OTHER, Stopwatch
from pkb_gym.problems.catalogue import find_problem, reference_source
from pkb_gym.rewards.examples import MACHINE
from tests.engine.candidates import FOLDER, Candidate, read
from tests.engine.evaluators.threads import Visitor, in_thread, joined, running
from tests.fake_gpus import pretend_gpus
from tests.leaks import descendants
from tests.waiting import PATIENCE_S, until

GOOD = read(FOLDER / "good" / "waits_for_peers.cpp")
BAD = read(FOLDER / "broken" / "segfault_on_one_rank.cpp")


def run_together(*works: Callable[[], Feedback]) -> list[Feedback]:
    found: list[Feedback | BaseException] = [RuntimeError("not run")] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    for one in found:
        assert isinstance(one, Feedback), one
    return found


def evaluate(evaluator: LocalEvaluator, candidate: Candidate, until: str = "time") -> Feedback:
    config = candidate.config.model_copy(update={"until": until})
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, config)


def test_two_evaluators_share_machine_and_cache(local_evaluator: LocalEvaluator, compiled_before: Path) -> None:
    kernel = dataclasses.replace(GOOD, source=f"{GOOD.source}\n// compiled by both at the same time\n")
    with LocalEvaluator(cache_dir=compiled_before) as other:
        for feedback in run_together(lambda: evaluate(local_evaluator, kernel), lambda: evaluate(other, kernel)):
            assert feedback.passed, feedback.message
            assert feedback.timing is not None


def test_threads_share_one_evaluator(local_evaluator: LocalEvaluator) -> None:
    works = [lambda candidate=candidate: evaluate(local_evaluator, candidate, "check") for candidate in (GOOD, BAD) * 2]
    failures = [feedback.failure for feedback in run_together(*works)]
    assert failures == [None, Failure.RUNTIME_ERROR] * 2


def test_between_evaluations_reference_ranks_take_no_processor_time(
    local_evaluator: LocalEvaluator, gang_pool: GangPool
) -> None:
    """gloo's threads looked for messages a hundred times a second, for as long as the evaluator was open."""
    processes = gang_pool.reference("cpu", 2)._gang.processes
    for _ in range(2):
        assert evaluate(local_evaluator, GOOD, "check").passed
        wait_until_stopped(processes.pidfds, time.monotonic() + PATIENCE_S)


LEARNS = """
import torch, torch.distributed as dist
calls = iter(range(60))
def solution(tensor):
    if next(calls, None) is not None:
        print("seen", *tensor.view(-1)[:4].view(torch.int16).tolist(), flush=True)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


def test_what_one_source_learns_of_timed_inputs_is_of_no_use_to_the_next(local_evaluator: LocalEvaluator) -> None:
    """With the same seed and turn, all inputs were the same: a table of results, read from the output, was paid."""
    config = EvalConfig(device="cpu", size="tiny", world_size=1, until="time", timing_budget_s=0.01, seed=3)
    seen = []
    for source in (LEARNS, f"{LEARNS}# and a table"):
        feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
        assert feedback.passed and feedback.timing is not None, feedback.message
        lines = [line for line in feedback.output.splitlines() if "seen" in line]
        seen.append(set(lines))
    assert len(seen[0] & seen[1]) <= checked_calls(1) < len(seen[0])


def test_a_deadlock_is_not_waited_for_until_its_deadline(local_evaluator: LocalEvaluator) -> None:
    lost = read(FOLDER / "broken" / "lost_signal.cpp")
    config = lost.config.model_copy(update={"timeout_s": 200.0})
    feedback = local_evaluator.evaluate(find_problem(lost.problem), lost.source, config)
    assert feedback.failure is Failure.DEADLOCK
    assert "no thread runs that could signal. rank 0: waits in call 0 for signal 5" in feedback.message
    assert "rank 1: has finished call 0" in feedback.message
    assert "kernel.cpp:7" in feedback.message, "where it stood"


LARGE_MODULE = """
import gc

FROZEN = gc.get_freeze_count()
KEPT = [[] for _ in range(50_000)]
reference = solution


def solution(*args):
    assert gc.get_freeze_count() - FROZEN >= len(KEPT)
    return reference(*args)
"""


def test_collections_before_blocks_pass_over_what_a_module_has_made(local_evaluator: LocalEvaluator) -> None:
    """Of a module that imports torch's compiler, they took longer than the blocks."""
    config = EvalConfig(device="cpu", world_size=1, size="tiny", until="check")
    found = local_evaluator.evaluate(PROBLEM, f"{reference_source(PROBLEM)}{LARGE_MODULE}", config)
    assert found.passed, found.message


def test_a_closed_evaluator_refuses_work(tmp_path: Path) -> None:
    evaluator = LocalEvaluator(cache_dir=tmp_path)
    evaluator.close()
    evaluator.close()
    with pytest.raises(InfrastructureError, match="closed"):
        evaluate(evaluator, GOOD)


def test_closing_in_the_middle_is_no_failure_of_the_candidate(compiled_before: Path) -> None:
    slow = read(FOLDER / "broken" / "endless_loop.cpp")
    evaluator = LocalEvaluator(cache_dir=compiled_before)
    evaluator.warm_up(2)
    began = threading.Event()

    def work() -> Feedback:
        config = slow.config.model_copy(update={"timeout_s": 30.0})
        return evaluator.evaluate(
            find_problem("AllReduce"), slow.source, config, progress=lambda stage: stage == "check" and began.set()
        )

    def close() -> Feedback:
        began.wait(60)
        evaluator.close()
        return evaluate_elsewhere

    evaluate_elsewhere = Feedback.model_construct()
    feedback = run_together(work, close)[0]
    assert feedback.failure is Failure.INFRASTRUCTURE, feedback.message


PROBLEM = find_problem("AllReduce")


@pytest.mark.parametrize(
    "source", ["", "\n" * 20_000, "I cannot help with that.", "x" * (2 << 20), "\ud800", "\0"], ids=range(6)
)
def test_a_rejected_text_is_a_record_like_any_other(tmp_path: Path, source: str) -> None:
    """No zygote is started, and the record survives JSON whatever the text holds."""
    before = descendants()
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        feedback = evaluator.evaluate(PROBLEM, source, EvalConfig(device="cpu"))
        until(lambda: descendants() <= before)  # a process that looks whether bubblewrap works may be about to end
    assert (feedback.stage, feedback.failure) == (None, Failure.REJECTED)
    assert feedback.message
    assert Feedback.model_validate_json(feedback.model_dump_json()) == feedback


def test_the_configuration_of_an_evaluation_is_known_before_it(tmp_path: Path) -> None:
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        config = EvalConfig(device="cpu", seed=3)
        resolved = evaluator.resolve(PROBLEM, reference_source(PROBLEM), config)
        assert (resolved.language, resolved.seed, resolved.device) == ("python", 3, "cpu")
        assert evaluator.evaluate(PROBLEM, "no source", config).config == resolved.model_copy(
            update={"language": "cpp"}
        )
        with pytest.raises(ConfigError, match="does not run on device"):
            evaluator.evaluate(PROBLEM, "no source", EvalConfig(device="cpu", language="cuda"))


def test_an_environment_that_is_copied_shares_its_evaluator(tmp_path: Path) -> None:
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        assert copy.deepcopy({"evaluator": evaluator})["evaluator"] is evaluator


@pytest.mark.usefixtures("locks_apart")
def test_progress_is_reported_in_order(local_evaluator: LocalEvaluator) -> None:
    reported: list[str] = []
    config = GOOD.config.model_copy(update={"until": "profile"})
    feedback = local_evaluator.evaluate(find_problem(GOOD.problem), GOOD.source, config, progress=reported.append)
    assert feedback.passed, feedback.message
    assert reported == ["static", "compile", PREPARING, "check", "time", "profile"]
    between = {PREPARING, WAITING, ENDING, OTHER}  # seconds of a first evaluation had no name
    assert set(feedback.durations_s) == {*reported, *between} and feedback.durations_s[PREPARING] > 0


@pytest.mark.usefixtures("locks_apart")
def test_waiting_for_the_devices_is_reported(local_evaluator: LocalEvaluator) -> None:
    reported: list[str] = []
    assert local_evaluator.pause(PATIENCE_S)
    found: list[Feedback] = []
    works = in_thread(
        lambda: found.append(
            local_evaluator.evaluate(find_problem(GOOD.problem), GOOD.source, GOOD.config, progress=reported.append)
        )
    )
    until(lambda: WAITING in reported)
    time.sleep(0.1)
    local_evaluator.resume()
    works.join(90)
    assert not works.is_alive()
    assert reported == ["static", "compile", WAITING, PREPARING, "check"]
    assert found[0].durations_s[WAITING] >= 0.1


def test_a_candidate_that_is_judged_again_has_the_time_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(local, "Stopwatch", lambda: Stopwatch(lambda: float(next(clock))))
    monkeypatch.setattr(LocalEvaluator, "_run_stages", lambda *_, **__: (_ for _ in ()).throw(Stopped("", killed=True)))
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        feedback = evaluate(evaluator, GOOD)
    assert feedback.durations_s == {OTHER: next(clock) - 1}


def test_a_pause_and_its_end_can_be_repeated(tmp_path: Path) -> None:
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        assert evaluator.pause() and evaluator.pause(0)
        evaluator.resume()
        evaluator.resume()


@pytest.mark.usefixtures("locks_apart")
def test_closing_ends_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refilling waits for the end of the pause, and closing for refilling."""
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: True)
    evaluator = LocalEvaluator(cache_dir=tmp_path, standby_gangs=2)
    config = evaluator.resolve(PROBLEM, GOOD.source, EvalConfig(device="cuda", world_size=2))

    def take_a_gang() -> None:
        with pytest.raises(InfrastructureError, match="has been closed"), evaluator._pool.candidate_gang(config, ""):
            pass

    assert evaluator.pause()
    taking = in_thread(take_a_gang)
    until(lambda: running("pkb-standby"))
    joined(in_thread(evaluator.close))
    joined(taking)
    assert not running("pkb-standby")


def test_a_pause_that_begins_while_it_closes_does_not_hold_the_closing_up(tmp_path: Path) -> None:
    evaluator = LocalEvaluator(cache_dir=tmp_path)
    evaluator.close()
    assert evaluator.pause(PATIENCE_S)
    assert evaluator._arbiter.acquire(blocking=False), "closing waits for that"
    evaluator._arbiter.release()


class Judge:
    """Stands for the stages behind compiling; records what is held meanwhile, and fails with a given error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.meanwhile: Callable[[AbstractContextManager[None]], None] = lambda idle_devices: None
        self.kinds: list[tuple[str, int]] = []
        self.discarded = 0

    def __call__(
        self, run: object, cache: object, idle_devices: Callable[[], AbstractContextManager[None]], report: object
    ) -> None:
        self.meanwhile(idle_devices())
        if self.error is not None:
            raise self.error


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """No text is compiled and no process started."""
    judge = Judge()
    artifact = Artifact(ok=True, log="", duration_s=0.1)
    pretend_gpus(monkeypatch, "NVIDIA H200", "NVIDIA H200")
    monkeypatch.setattr(local, "compile_source", lambda *_: artifact)
    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(local, "judge", judge)
    monkeypatch.setattr(GangPool, "start_zygotes", lambda self: None)
    monkeypatch.setattr(GangPool, "check_hidden", lambda self, folder: None)
    monkeypatch.setattr(GangPool, "reference", lambda self, *kind: judge.kinds.append(kind))
    monkeypatch.setattr(execution_environment, "no_detector", lambda: "")
    monkeypatch.setattr(GangPool, "handovers", lambda self, device: None)
    monkeypatch.setattr(GangPool, "discard_broken", lambda self: setattr(judge, "discarded", judge.discarded + 1))
    monkeypatch.setattr(execution_environment, "describe", lambda *_: MACHINE)
    return judge


@pytest.mark.parametrize(("device", "kept_out"), [("cpu", False), ("cuda", True)])
def test_only_timings_on_gpus_keep_preparing_out(
    compiled_before: Path, judge: Judge, device: str, kept_out: bool
) -> None:
    looked = []
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:

        def meanwhile(idle_devices: AbstractContextManager[None]) -> None:
            with idle_devices:
                preparing = Visitor(evaluator._arbiter.preparing())
                looked.append(preparing.is_kept_out)
            assert preparing.came_in
            preparing.leave()

        judge.meanwhile = meanwhile
        config = EvalConfig(device=device, world_size=2, size="tiny")  # type: ignore[arg-type]
        evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config)
    assert looked == [kept_out] and judge.kinds == [(device, 2, 1, 0)]


class Beside:
    """Evaluations that wait in their last stage, and the stages that each reports."""

    def __init__(self, evaluator: LocalEvaluator, judge: Judge) -> None:
        self.inside, self.may_end, self._lock = 0, threading.Event(), threading.Lock()
        self._evaluator, judge.meanwhile = evaluator, self._wait

    def _wait(self, _: AbstractContextManager[None]) -> None:
        with self._lock:
            self.inside += 1
        assert self.may_end.wait(PATIENCE_S)
        with self._lock:
            self.inside -= 1

    def begin(self, heard: list[str], **changes: object) -> threading.Thread:
        config = EvalConfig(device="cuda", world_size=2, size="tiny", until="check").model_copy(update=changes)
        source = reference_source(PROBLEM)
        return in_thread(lambda: self._evaluator.evaluate(PROBLEM, source, config, heard.append))


@pytest.mark.usefixtures("locks_apart")
def test_candidates_are_checked_beside_each_other_on_gpus(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the GPUs have room for, each beside a reference gang of its own; none beside a timing."""
    monkeypatch.setattr(host, "processors", lambda: 16)
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        beside, heard = Beside(evaluator, judge), list[str]()
        checks = [beside.begin([]), beside.begin([])]
        until(lambda: beside.inside == 2)
        assert sorted(judge.kinds) == [("cuda", 2, 1, 0), ("cuda", 2, 1, 1)]
        checks.append(beside.begin(heard))
        until(lambda: WAITING in heard)
        timing = Visitor(evaluator._arbiter.timing())
        assert timing.is_kept_out and beside.inside == 2
        beside.may_end.set()
        for check in checks[:2]:
            joined(check)
        assert timing.came_in and len(judge.kinds) == 2
        timing.leave()
        joined(checks[2])


@pytest.mark.usefixtures("locks_apart")
@pytest.mark.parametrize(
    ("neighbours", "failure", "judged"),
    [
        (True, Failure.OUT_OF_MEMORY, 2),
        (True, Failure.DEADLOCK, 2),
        (True, Failure.OUTPUT_MISMATCH, 1),
        (False, Failure.OUT_OF_MEMORY, 1),
    ],
)
def test_what_a_neighbour_may_have_brought_about_on_gpus_is_judged_again_alone(
    compiled_before: Path,
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    neighbours: bool,
    failure: Failure,
    judged: int,
) -> None:
    """A candidate that took the GPUs' memory cost the one beside it its reward."""
    monkeypatch.setattr(host, "processors", lambda: 16)
    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: True))
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        lanes = evaluator._lanes
        shared: list[int] = []
        other = contextlib.ExitStack()

        def fails(feedback: FeedbackBuilder, *_: object) -> None:
            if neighbours and not shared:
                other.enter_context(lanes.taken(Need(2, 0), 1 << 60))
                other.close()
            shared.append(sum(lanes.was_shared(lane) for lane in (0, 1)))
            raise feedback.stop(failure, "a rank failed")

        monkeypatch.setattr(local, "judge", fails)
        config = EvalConfig(device="cuda", world_size=2, size="tiny", until="check")
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config)
    assert found.failure is failure
    assert shared == [int(neighbours), 0][:judged]


@pytest.mark.usefixtures("locks_apart")
@pytest.mark.parametrize(
    ("free_gib", "loads", "fails", "failure"),
    [
        ((140, 140), True, 2, Failure.OUT_OF_MEMORY),
        ((0, 140), True, 2, Failure.OUT_OF_MEMORY),
        ((140, 0), True, 2, Failure.INFRASTRUCTURE),
        ((140, 140), False, 1, Failure.INFRASTRUCTURE),
        ((140, 140), True, 1, None),
    ],
    ids=["greedy", "only the second judging counts", "others hold the memory", "before it was loaded", "by chance"],
)
def test_a_candidate_that_leaves_the_baseline_no_memory_fails_by_itself(
    compiled_before: Path,
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    free_gib: tuple[int, int],
    loads: bool,
    fails: int,
    failure: Failure | None,
) -> None:
    """One that took all memory of the GPUs was an infrastructure failure, which has no reward."""
    free = list(free_gib)
    judged: list[FeedbackBuilder] = []
    monkeypatch.setattr(gpus, "free_bytes", lambda: free[len(judged)] << 30)
    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: True))

    def judge_greedy(feedback: FeedbackBuilder, *_: object) -> None:
        judged.append(feedback)
        feedback.has_loaded = loads
        if len(judged) <= fails:
            raise ReferenceOutOfMemory("the reference gang failed: CUDA out of memory")
        raise feedback.stop(Failure.OUTPUT_MISMATCH, "judged to its end")

    monkeypatch.setattr(local, "judge", judge_greedy)
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        config = EvalConfig(device="cuda", world_size=2, size="tiny", until="time")
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config)
    assert len(judged) == (2 if loads else 1)
    assert found.failure is (failure or Failure.OUTPUT_MISMATCH), found.message
    if failure is Failure.OUT_OF_MEMORY:
        assert "took the memory of the GPUs" in found.message


@pytest.mark.usefixtures("locks_apart")
def test_a_candidate_that_hangs_costs_the_one_beside_it_nothing(
    compiled_before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a lane, with ranks and a reference gang of its own."""
    monkeypatch.setattr(host, "processors", lambda: 4)
    hanging = read(FOLDER / "broken" / "endless_loop.cpp")
    in_check = threading.Event()
    found: list[Feedback] = []
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:

        def hang() -> None:
            config = hanging.config.model_copy(update={"timeout_s": 2 * PATIENCE_S, "until": "check"})
            report = lambda stage: stage == Stage.CHECK.value and in_check.set()  # noqa: E731
            found.append(evaluator.evaluate(PROBLEM, hanging.source, config, progress=report))

        thread = in_thread(hang)
        assert in_check.wait(PATIENCE_S)
        good = evaluate(evaluator, GOOD, "check")
        assert good.passed, good.message
        assert not found, "it still hangs"
    joined(thread)
    assert found[0].failure is Failure.INFRASTRUCTURE, "cut short by the end of the evaluator"


@pytest.mark.usefixtures("locks_apart")
@pytest.mark.parametrize("changes", [{"until": "time"}, {"until": "profile"}])
def test_one_candidate_at_a_time_is_timed(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    monkeypatch.setattr(host, "processors", lambda: 16)
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        beside, heard = Beside(evaluator, judge), list[str]()
        first = beside.begin([], **changes)
        until(lambda: beside.inside == 1)
        second = beside.begin(heard, **changes)
        until(lambda: WAITING in heard)
        assert beside.inside == 1 and len(judge.kinds) == 1
        beside.may_end.set()
        joined(first)
        joined(second)


@pytest.mark.usefixtures("locks_apart")
def test_a_pause_keeps_checks_from_beginning_and_holds_up_no_other_evaluator(
    compiled_before: Path, judge: Judge
) -> None:
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        beside, heard = Beside(evaluator, judge), list[str]()
        beside.may_end.set()
        assert evaluator.pause(PATIENCE_S)
        check = beside.begin(heard)
        until(lambda: WAITING in heard)
        with machine_to_itself(heard.append):  # another evaluator of this machine measures
            assert not judge.kinds
        evaluator.resume()
        joined(check)
        assert len(judge.kinds) == 1


def test_a_fault_of_this_machine_is_reported_as_one(compiled_before: Path, judge: Judge) -> None:
    """And later evaluations begin with fresh processes."""
    judge.error = InfrastructureError("the reference gang failed")
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cpu", world_size=2))
        assert (found.failure, found.stage, judge.discarded) == (Failure.INFRASTRUCTURE, Stage.COMPILE, 1)
        assert found.message == "this machine could not judge it: the reference gang failed"
        assert evaluator._arbiter.acquire(blocking=False), "the devices are free again"
        evaluator._arbiter.release()


@pytest.mark.parametrize("sound", [True, False])
def test_a_rank_that_fell_with_its_zygote_is_no_failure_of_the_candidate(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    def fails(feedback: FeedbackBuilder, *_: object) -> None:
        raise feedback.stop(Failure.RUNTIME_ERROR, "rank 0 was killed by SIGKILL")

    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(local, "judge", fails)
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: sound))
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cpu", world_size=2))
    assert found.failure is (Failure.RUNTIME_ERROR if sound else Failure.INFRASTRUCTURE)
    assert judge.discarded == (0 if sound else 1)


@pytest.mark.parametrize(("kills", "failure"), [(1, None), (2, Failure.OUT_OF_MEMORY)])
def test_a_candidate_that_was_killed_is_judged_once_more(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch, kills: int, failure: Failure | None
) -> None:
    """Somebody's kill -9 stood as the candidate's own lack of memory."""
    left, nonces = [True] * kills, []

    def killed(feedback: FeedbackBuilder, *_: object) -> None:
        nonces.append(feedback.nonce)
        if left:
            left.pop()
            raise feedback.stop(Failure.OUT_OF_MEMORY, "rank 0 was killed by the kernel", 0, killed=True)

    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(local, "judge", killed)
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: True))
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cpu", world_size=2))
    assert found.failure is failure and not left
    assert len({*nonces}) == len(nonces) and found.nonce == nonces[-1]


def test_attempts_under_one_key_have_timed_inputs_of_their_own(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(local, "judge", lambda *_: None)
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: True))
    config = EvalConfig(device="cpu", world_size=2)
    key, nonce = bytes(range(KEY_BYTES)), bytes(range(NONCE_BYTES))
    with LocalEvaluator(cache_dir=compiled_before, key=key) as evaluator:
        replay_keys = (None, None, key, key + nonce)
        found = [
            evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config, replay_key=replay_key).nonce
            for replay_key in replay_keys
        ]
    assert len(found[0]) == len(found[1]) == 2 * NONCE_BYTES and found[0] != found[1]
    assert found[2:] == ["", nonce.hex()]


class Detector:
    """Stands for the race detector; notes what is asked of it."""

    def __init__(self, judged: JudgedRaces) -> None:
        self.log: list[str] = []
        self._judged = judged

    def begin(self, problem: Problem, source: Source, compiled: Artifact, config: ResolvedConfig, key: bytes) -> Self:
        self.log.append(f"begin {config.race_check}, {source.language}")
        return self

    def start_processes(self) -> None:
        self.log.append("start")

    def result(self) -> JudgedRaces:
        self.log.append("result")
        return self._judged

    def cancel(self) -> None:
        self.log.append("cancel")

    def close(self) -> None:
        self.log.append("close")


CUDA = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\n'
RACE = JudgedRaces(
    report=RaceCheckReport(verdict="race", size="tiny", duration_s=1.0),
    race=Race(kind="unordered", evidence="kernel.cu:12"),
    message="race on 2 bytes",
)


@pytest.fixture
def on_gpus(judge: Judge, compiled_before: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEvaluator]:
    """An evaluator whose ranks and detector are stand-ins: the detector finds a race in every source."""
    monkeypatch.setattr(local, "check_loadable", lambda *_: None)
    monkeypatch.setattr(gang_pool_module, "CandidateRun", lambda builder, *_: contextlib.nullcontext(builder))
    monkeypatch.setattr(GangPool, "stack_trace", lambda self: None)
    monkeypatch.setattr(GangPool, "is_sound", property(lambda self: True))
    monkeypatch.setattr(local, "RaceDetector", lambda cache: Detector(RACE))
    monkeypatch.setattr(local, "Debugger", lambda *_: None)
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        yield evaluator


def on_two_gpus(evaluator: LocalEvaluator, source: str = CUDA, **requested: object) -> tuple[Feedback, list[str]]:
    """The feedback, what was reported of its progress, and behind it what was asked of the detector."""
    reported: list[str] = []
    config = EvalConfig.model_validate({"device": "cuda", "world_size": 2, "size": "tiny", **requested})
    feedback = evaluator.evaluate(PROBLEM, source, config, progress=reported.append)
    return feedback, [*reported, *evaluator._races.log]  # type: ignore[attr-defined]


def test_a_race_that_the_detector_finds_beside_gpus_is_the_verdict(on_gpus: LocalEvaluator) -> None:
    feedback, log = on_two_gpus(on_gpus)
    assert feedback.failure is Failure.RACE and feedback.message == "race on 2 bytes" and feedback.race == RACE.race
    assert CHECKING_RACES in log and log[-4:] == ["start", "begin on, cuda", "result", "cancel"]
    assert feedback.durations_s[CHECKING_RACES] >= 0 and feedback.race_check == RACE.report


def test_the_devices_are_free_while_the_detector_is_waited_for(
    on_gpus: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = []

    def result(self: Detector) -> JudgedRaces:
        free.append(on_gpus._arbiter.acquire(blocking=False))
        on_gpus._arbiter.release()
        return RACE

    monkeypatch.setattr(Detector, "result", result)
    on_two_gpus(on_gpus)
    assert free == [True]


@pytest.mark.parametrize("requested", [{"race_check": "off"}, {"until": "compile"}])
def test_the_detector_is_not_asked_where_its_verdict_is_not_wanted(
    on_gpus: LocalEvaluator, requested: dict[str, object]
) -> None:
    feedback, log = on_two_gpus(on_gpus, **requested)
    assert feedback.failure is None and feedback.race_check is None and not {"start", "begin on, cuda"} & {*log}


def test_a_verdict_that_closing_has_cut_short_is_none(on_gpus: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(self: Detector) -> JudgedRaces:
        on_gpus.close()
        return RACE

    monkeypatch.setattr(Detector, "result", result)
    feedback, _ = on_two_gpus(on_gpus)
    assert feedback.failure is Failure.INFRASTRUCTURE and feedback.race_check is None


def test_modules_are_not_for_the_detector(on_gpus: LocalEvaluator) -> None:
    feedback, log = on_two_gpus(on_gpus, reference_source(PROBLEM))
    assert feedback.config.race_check == "off" and not any(entry.startswith(("start", "begin")) for entry in log)


TRITON = "import triton\n\n\ndef solution(tensor):\n    return tensor\n"


@pytest.fixture
def gsan(on_gpus: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> list[ResolvedConfig]:
    """Configurations of the runs under GSan, which finds a race in every source."""
    configs: list[ResolvedConfig] = []

    def judge_by_gsan(builder: FeedbackBuilder) -> JudgedRaces:
        configs.append(builder.config)
        return RACE

    monkeypatch.setattr(execution_environment, "no_gsan", lambda: "")
    monkeypatch.setattr(gsan_check, "judge_by_gsan", judge_by_gsan)
    return configs


def test_a_race_that_gsan_finds_in_a_triton_source_is_the_verdict(
    on_gpus: LocalEvaluator, gsan: list[ResolvedConfig]
) -> None:
    feedback, log = on_two_gpus(on_gpus, TRITON)
    assert feedback.failure is Failure.RACE and feedback.race == RACE.race and feedback.timing is None
    assert log[-1] == UNDER_GSAN, "after the stages, and without the detector of native sources"
    assert feedback.race_check is not None and feedback.race_check.duration_s < 1.0, "as it was measured"
    assert gsan == [gsan[0]] and gsan[0].until == "check" and feedback.config.until == "profile"


@pytest.mark.parametrize(
    ("source", "requested"),
    [(TRITON, {"race_check": "off"}), (TRITON, {"until": "compile"}), (reference_source(PROBLEM), {}), (CUDA, {})],
)
def test_gsan_judges_triton_sources_whose_races_are_of_interest(
    on_gpus: LocalEvaluator, gsan: list[ResolvedConfig], source: str, requested: dict[str, object]
) -> None:
    on_two_gpus(on_gpus, source, **requested)
    assert not gsan


def test_what_keeps_this_machine_from_gsan_is_a_warning(
    on_gpus: LocalEvaluator, gsan: list[ResolvedConfig], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(builder: FeedbackBuilder) -> JudgedRaces:
        raise InfrastructureError("no memory is left\nbeside it")

    monkeypatch.setattr(gsan_check, "judge_by_gsan", fails)
    feedback, _ = on_two_gpus(on_gpus, TRITON)
    assert feedback.failure is None and feedback.race_check is not None and judge.discarded == 1
    assert (feedback.race_check.verdict, feedback.race_check.reason) == ("not_judged", "no memory is left")


def test_a_verdict_of_gsan_that_closing_has_cut_short_is_none(
    on_gpus: LocalEvaluator, gsan: list[ResolvedConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closes(builder: FeedbackBuilder) -> JudgedRaces:
        on_gpus._closed = True
        return RACE

    monkeypatch.setattr(gsan_check, "judge_by_gsan", closes)
    feedback, _ = on_two_gpus(on_gpus, TRITON)
    assert feedback.failure is Failure.INFRASTRUCTURE


def test_a_triton_source_that_has_failed_does_not_run_under_gsan(
    on_gpus: LocalEvaluator, gsan: list[ResolvedConfig], judge: Judge
) -> None:
    judge.error = InfrastructureError("a GPU is lost")
    assert on_two_gpus(on_gpus, TRITON)[0].failure is Failure.INFRASTRUCTURE and not gsan


def test_what_has_failed_already_waits_for_no_verdict(on_gpus: LocalEvaluator, judge: Judge) -> None:
    judge.error = InfrastructureError("a GPU is lost")
    feedback, log = on_two_gpus(on_gpus)
    assert feedback.failure is Failure.INFRASTRUCTURE and feedback.race_check is None
    assert log[-2:] == ["begin on, cuda", "cancel"], "its run is ended"


def test_a_lack_of_descriptors_is_a_fault_of_this_machine(
    compiled_before: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left `evaluate` as an OSError, and with it a training run."""
    judge.error = OSError(24, "Too many open files")
    config = EvalConfig(device="cpu", world_size=2)
    with LocalEvaluator(cache_dir=compiled_before) as evaluator:
        found = evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config)
        assert found.failure is Failure.INFRASTRUCTURE and "Too many open files" in found.message
        assert judge.discarded == 1

        def cannot_read(*_: object) -> None:
            raise judge.error

        monkeypatch.setattr(local, "FeedbackBuilder", cannot_read)
        with pytest.raises(InfrastructureError, match="Too many open files"):
            evaluator.evaluate(PROBLEM, reference_source(PROBLEM), config)


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pretend_gpus(monkeypatch)
    execution_environment.describe.cache_clear()
    yield
    execution_environment.describe.cache_clear()


def test_without_a_gpu_a_python_source_is_imported_and_that_is_all(
    local_evaluator: LocalEvaluator, without_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: True)
    feedback = local_evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cuda"))
    assert (feedback.failure, feedback.stage) == (Failure.COMPILED_ONLY, Stage.COMPILE), feedback.message
    assert feedback.message == "imported; this machine has no GPU, so it was not run"


def test_without_a_gpu_and_nvcc_cuda_is_refused(
    tmp_path: Path, without_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: False)
    with (
        LocalEvaluator(cache_dir=tmp_path) as evaluator,
        pytest.raises(ConfigError, match="neither an NVIDIA GPU nor nvcc"),
    ):
        evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cuda"))
