"""Stage profile: how many calls, by which deadline, and what comes of the ranks' reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.gpus import NvlinkBytes
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.timing import Block
from pkb_gym.engine.stages import profile as profile_stage
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.profile import MAX_CALLS, PROFILER_START_S, profile
from pkb_gym.rewards.examples import timed
from tests.engine.gpu_events import EVENTS
from tests.engine.reports import reported
from tests.engine.stages.fake_gangs import Bench

TIMING = timed(baseline_us=100).timing
assert TIMING is not None


def bench_of(calls: int, **requested: object) -> Bench:
    """A candidate that was timed in blocks of so many calls."""
    bench = Bench(**requested)
    blocks = (Block(calls=calls, baseline_us=100, candidate_us=50),)
    bench.feedback.timing = TIMING.model_copy(update={"blocks": blocks})
    return bench


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Reads of the links' counters; each finds 3 MiB more."""
    reads: list[int] = []

    def link_bytes(count: int) -> tuple[NvlinkBytes, ...]:
        reads.append(count)
        return (NvlinkBytes(len(reads) * (3 << 20), 0),) * count

    monkeypatch.setattr(gpus, "link_bytes", link_bytes)
    monkeypatch.setattr(profile_stage, "gpu_link_bytes_per_s", lambda: 450e9)
    return reads


@pytest.mark.parametrize(("timed_calls", "calls"), [(5, 5), (100, MAX_CALLS)])
def test_as_many_calls_as_a_block_has_but_not_too_many(timed_calls: int, calls: int, links: list[int]) -> None:
    bench = bench_of(timed_calls, timeout_s=1.0)
    bench.candidate.reports = [reported(device=None)] * 2
    with bench.run() as run:
        profile(run)
    sets = list(range(calls))
    limit_s = 1.0 + PROFILER_START_S
    assert bench.logged("make", "profile") == [f"make {calls} timed", f"profile {sets} in {limit_s:g} s"]
    found = bench.feedback.profile
    assert found is not None and [rank.calls for rank in found.ranks] == [calls] * 2
    assert found.trace == () and links == []


def test_on_gpus_a_call_comes_before_those_that_are_measured(links: list[int]) -> None:
    bench = bench_of(2, gpus=2, trace=True)
    bench.artifact = dataclasses.replace(bench.artifact, transfers=InstructionCounts(loads=3))
    bench.candidate.reports = [reported(*EVENTS)] * 2
    with bench.run() as run:
        profile(run)
    assert bench.logged("profile")[0].startswith("profile [0, 0, 1] in")
    assert links == [2, 2], "before and after"
    found = bench.feedback.profile
    assert found is not None and [rank.sent_bytes for rank in found.ranks] == [1 << 20] * 2
    assert found.trace != () and found.mechanisms == ("copy engine", "SM load/store")


def test_the_deadline_follows_the_baseline() -> None:
    bench = bench_of(2)
    bench.feedback.timing = bench.feedback.timing.model_copy(update={"baseline_us": 1e6})  # type: ignore[union-attr]
    bench.candidate.reports = [reported(device=None)] * 2
    with bench.run() as run:
        profile(run)
    assert bench.logged("profile") == [f"profile [0, 1] in {60 + PROFILER_START_S:g} s"]


def test_a_report_that_cannot_be_is_no_profile_and_no_failure() -> None:
    bench = bench_of(2)
    bench.candidate.reports = [reported(wall_us=-1.0, device=None)] * 2
    with bench.run() as run:
        profile(run)
    assert bench.feedback.profile is None and not bench.feedback.failed


def test_a_candidate_that_falls_under_the_profiler() -> None:
    bench = bench_of(2)
    bench.candidate.fails["profile"] = GangFailed(Failure.TIMEOUT, 0, "no end")
    with pytest.raises(Stopped), bench.run() as run:
        profile(run)
    assert bench.feedback.failed and bench.feedback.profile is None
