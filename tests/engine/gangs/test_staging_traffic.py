"""A baseline's block finds the caches as a candidate's does: memory was copied on its processors just before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pkb_gym.engine.gangs import staging_traffic
from pkb_gym.engine.gangs.staging_traffic import StagingTraffic

FEW = 4096
WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def rank() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that runs on one processor alone, and its pidfd."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        yield process, pidfd
        process.kill()
        os.close(pidfd)


def test_memory_is_copied_on_the_processors_of_each_rank(
    rank: tuple[subprocess.Popen[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, moves = os.sched_getaffinity(0), []
    move = os.sched_setaffinity

    def note(pid: int, processors: set[int]) -> None:
        moves.append(processors)
        move(pid, processors)

    monkeypatch.setattr(os, "sched_setaffinity", note)
    monkeypatch.setattr(staging_traffic, "MIN_BYTES", FEW)
    traffic = StagingTraffic()
    traffic.cause([rank[1]] * 2, FEW)
    assert moves == [{max(own)}, own] * 2
    assert len(traffic._memory) == 2 * FEW, "the copy and its source"
    traffic._memory[:FEW] = 7
    traffic.cause([rank[1]], FEW)
    assert (traffic._memory == 7).all()


def test_what_was_kept_is_used_for_less_and_grows_between_two_limits(
    rank: tuple[subprocess.Popen[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_traffic, "MIN_BYTES", FEW)
    monkeypatch.setattr(staging_traffic, "MAX_BYTES", 3 * FEW)
    traffic = StagingTraffic()
    lengths = []
    for nbytes in (1, 0, 2 * FEW, FEW, 100 * FEW):
        traffic.cause([rank[1]], nbytes)
        lengths.append(len(traffic._memory) // FEW)
    assert lengths == [2, 2, 4, 4, 6]


def test_a_rank_that_has_ended_is_passed_over(rank: tuple[subprocess.Popen[bytes], int]) -> None:
    process, pidfd = rank
    process.kill()
    process.wait()
    own = os.sched_getaffinity(0)
    StagingTraffic().cause([pidfd], FEW)
    assert os.sched_getaffinity(0) == own
