"""The stages in order: where they end, what is held meanwhile, and what a failure leaves undone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.division import Division
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.stages import pipeline
from pkb_gym.engine.stages import roofline as roofline_stage
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.check import MAX_CONGESTED, MAX_INTERRUPTED, MAX_PREEMPTED
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.pipeline import judge
from pkb_gym.engine.stages.progress import WAITING
from pkb_gym.engine.stages.stopwatch import CAPTURING, OTHER
from tests.engine.gpu_events import EVENTS
from tests.engine.records.mismatches import mismatch
from tests.engine.reports import reported
from tests.engine.stages.fake_gangs import Bench

pytestmark = pytest.mark.usefixtures("locks_apart")

Judge = Callable[[Bench], Feedback]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """What becomes of a candidate on two fake gangs; the log says when the devices were held."""

    def unknown(device: str) -> None:
        raise ConfigError("no peaks known")

    monkeypatch.setattr(roofline_stage, "find_hardware", unknown)
    monkeypatch.setattr(gpus, "link_bytes", lambda count: (None,) * count)

    def judge_it(bench: Bench) -> Feedback:
        on_gpus = bench.feedback.config.device == "cuda"
        bench.candidate.reports = (
            bench.candidate.reports or [reported(*EVENTS) if on_gpus else reported(device=None)] * 2
        )

        @contextlib.contextmanager
        def idle_devices() -> Iterator[None]:
            bench.log.append("devices held")
            try:
                yield
            finally:
                bench.log.append("devices free")

        with bench.run() as run, contextlib.suppress(Stopped):
            judge(run, BaselineCache(), idle_devices, lambda stage: bench.log.append(f"stage: {stage}"))
        return bench.feedback.build()

    return judge_it


def stages(bench: Bench) -> list[str]:
    return [entry.removeprefix("stage: ") for entry in bench.logged("stage: ")]


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(("until", "last"), [("check", Stage.CHECK), ("time", Stage.TIME), ("profile", Stage.PROFILE)])
def test_it_ends_where_that_was_asked_for(judged: Judge, gpus: int, until: str, last: Stage) -> None:
    bench = Bench(gpus=gpus, until=until)
    found = judged(bench)
    expected = [stage.value for stage in Stage if stage not in (Stage.STATIC, Stage.COMPILE, Stage.RUN)]
    assert stages(bench) == expected[: expected.index(last.value) + 1]
    assert (found.stage, found.failure) == (last, None)
    assert (found.check is not None, found.timing is not None) == (True, last is not Stage.CHECK)
    assert (found.profile is not None) == (last is Stage.PROFILE)
    assert set(found.durations_s) - {WAITING, OTHER, CAPTURING} == set(stages(bench))


@pytest.mark.parametrize("gpus", [0, 2])
def test_on_gpus_the_thread_that_times_stays_off_the_processors_of_compilers(
    judged: Judge, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    before = os.sched_getaffinity(0)
    timed, seen = frozenset({min(before)}), list[set[int]]()
    monkeypatch.setattr(pipeline, "division", lambda: Division(timed, before - timed))

    def time_here(*args: object) -> None:
        seen.append(os.sched_getaffinity(0))
        raise Stopped("timed")

    monkeypatch.setattr(pipeline, "time_blocks", time_here)
    judged(Bench(gpus=gpus, until="time"))
    assert seen == [timed if gpus else before] and os.sched_getaffinity(0) == before


def test_the_baseline_is_measured_before_there_is_a_candidate(judged: Judge) -> None:
    bench = Bench(gpus=2)
    found = judged(bench)
    before = bench.log[: bench.log.index(bench.logged("load")[0])]
    assert before.index("warm up 2") < before.index(bench.logged("null block of the candidate")[0])
    assert found.timing is not None and found.timing.baseline_alone_us == 100.0


def test_overhead_is_measured_for_timing_alone(judged: Judge) -> None:
    bench = Bench(gpus=2, until="check")
    judged(bench)
    assert bench.logged("null block") == []


def held(bench: Bench) -> list[list[str]]:
    """What happened each time that the devices were held."""
    spans, rest = [], bench.log
    while "devices held" in rest:
        begin, end = rest.index("devices held"), rest.index("devices free")
        spans.append(rest[begin + 1 : end])
        rest = rest[end + 1 :]
    return spans


def test_the_devices_are_held_while_anything_is_timed(judged: Judge) -> None:
    bench = Bench(gpus=2)
    judged(bench)
    overhead, timing, profiling, capturing, registering = held(bench)
    assert overhead[0].startswith("null block") and not [each for each in overhead if each.startswith("candidate")]
    assert timing[0] == "stage: time" and timing[1].startswith("make")
    assert timing[-1].startswith(("compare", "baseline"))
    assert [entry for entry in profiling if entry.startswith("profile")] and "capture 4 native" in capturing
    assert "register 4 native" in registering
    between = bench.log[bench.log.index("devices free") : bench.log.index("stage: time")]
    candidate = [entry.split(" in ")[0] for entry in between if entry.startswith("candidate")]
    slow = (MAX_INTERRUPTED, MAX_PREEMPTED, MAX_CONGESTED)
    of_check = ["candidate 5", "candidate 4", *(f"candidate {calls}" for calls in slow)]
    assert candidate == of_check, "the blocks of the check alone"


def test_nothing_is_captured_on_the_cpu(judged: Judge) -> None:
    bench = Bench()
    judged(bench)
    assert len(held(bench)) == 3 and bench.logged("capture") == []


def test_the_captured_baseline_comes_last_and_is_in_the_record(judged: Judge) -> None:
    for until in ("time", "profile"):
        bench = Bench(gpus=2, until=until)
        bench.reference.block_us = bench.candidate.block_us = 50.0
        found = judged(bench)
        assert found.timing is not None and found.timing.baseline_graph_us == pytest.approx(100.0)
        assert bench.log.index("capture 4 native") > max(
            index for index, entry in enumerate(bench.log) if "candidate" in entry
        )


def test_a_wrong_candidate_is_not_timed(judged: Judge) -> None:
    bench = Bench(gpus=2)
    bench.reference.mismatches = [[mismatch(rank=0, trial=6)]] * 2
    found = judged(bench)
    assert (found.failure, found.stage, stages(bench)) == (Failure.OUTPUT_MISMATCH, Stage.RUN, ["check"])
    assert found.timing is None and len(held(bench)) == 1, "for the overhead"


def test_a_candidate_that_is_caught_is_not_profiled(judged: Judge) -> None:
    """Nor is anything else measured for it; what was timed stands in the record."""
    bench = Bench(gpus=2)
    bench.candidate.ticks = 100
    found = judged(bench)
    assert (found.failure, found.stage) == (Failure.INTEGRITY, Stage.TIME)
    assert found.timing is not None and stages(bench) == ["check", "time"] and bench.logged("capture") == []


def test_a_stage_that_fails_is_not_completed(judged: Judge) -> None:
    bench = Bench()
    bench.candidate.fails["profile"] = GangFailed(Failure.TIMEOUT, 0, "no end")
    found = judged(bench)
    assert (found.failure, found.stage, found.profile) == (Failure.TIMEOUT, Stage.TIME, None)
    assert found.timing is not None and "profile" in found.durations_s
    assert bench.log.count("devices held") == bench.log.count("devices free")


def test_a_fault_of_this_machine_is_the_callers_to_report(judged: Judge) -> None:
    bench = Bench()
    bench.reference.fails["compare"] = InfrastructureError("the reference gang failed")
    with pytest.raises(InfrastructureError):
        judged(bench)
    assert not bench.feedback.failed
