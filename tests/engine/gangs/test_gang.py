"""Gangs: how they begin, answer, fall, freeze and end."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.gangs import gang as gang_module
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.heaps import SymmetricHeap, UnmetWait
from pkb_gym.engine.gangs.rank_threads import ThreadWatch
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.orders import Armed
from tests.engine.rank_programs import Did, Do
from tests.waiting import PATIENCE_S, until

PROGRAM = "tests.engine.rank_programs"
SLACK_S = 60.0
"""What the end of a gang may take beyond its deadline on a busy machine; its ranks sleep for a quarter of an hour."""


class Waits:
    """Where ranks report that they wait."""

    segment_bytes, world_size, fds = 0, 2, ()

    def __init__(self, unmet: UnmetWait | None) -> None:
        self._unmet = unmet

    def place(self, rank: int) -> str:
        return f"waits for signal {rank}"

    def unmet_wait(self, rank: int) -> UnmetWait | None:  # as the protocol has it
        return self._unmet


@pytest.fixture
def zygote(gang_pool: GangPool) -> Zygote:
    return gang_pool.zygote(trusted=True)


@pytest.fixture
def gang(zygote: Zygote) -> Iterator[Gang]:
    with Gang(zygote, PROGRAM, 2, None) as gang:
        yield gang


def do(gang: Gang, *words: str, timeout_s: float = 10.0, heap: SymmetricHeap | None = None) -> list[Did]:
    return gang.exchange([Do(words)] * len(words), Did, timeout_s=timeout_s, heap=heap)


def fall(gang: Gang, *words: str, timeout_s: float = 10.0, heap: SymmetricHeap | None = None) -> GangFailed:
    began = time.monotonic()
    with pytest.raises(GangFailed) as caught:
        do(gang, *words, timeout_s=timeout_s, heap=heap)
    assert time.monotonic() - began < timeout_s + SLACK_S
    return caught.value


def miss_deadline(gang: Gang, *words: str, heap: SymmetricHeap | None = None) -> GangFailed:
    """Ranks that have not begun by then would compute when they are looked at, whatever they are to do."""
    do(gang, "nothing", "nothing", timeout_s=60.0)
    return fall(gang, *words, timeout_s=0.6, heap=heap)


def test_every_rank_answers(gang: Gang) -> None:
    replies = do(gang, "nothing", "nothing")
    assert [(reply.rank, reply.world_size) for reply in replies] == [(0, 2), (1, 2)]
    assert len({reply.pid for reply in replies}) == 2


def test_bytes_and_descriptors_travel_along(gang: Gang) -> None:
    with Path(os.devnull).open() as file:
        gang.send([Do(("nothing", "nothing"))] * 2, fds=(file.fileno(),), raw=b"x" * 300_000)
    assert [reply.nbytes for reply in gang.collect(Did, timeout_s=PATIENCE_S).messages] == [300_000, 300_000]


def test_processes_end_with_the_gang(zygote: Zygote) -> None:
    with Gang(zygote, PROGRAM, 3, None) as gang:
        pids = [reply.pid for reply in do(gang, "fork", "spin in a thread", "nothing")]
        children = [child for pid in pids for child in psutil.Process(pid).children()]
        assert len(children) == 1
    gang.close()  # again: nothing happens
    assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("words", "rank", "failure", "message"),
    [
        (("sleep", "crash"), 1, Failure.RUNTIME_ERROR, "rank 1 was killed by SIGSEGV"),
        (("sleep", "exit"), 1, Failure.RUNTIME_ERROR, "rank 1 ended its process (exit status 0) before"),
        (("status 5", "sleep"), 0, Failure.RUNTIME_ERROR, "rank 0 ended its process with exit status 5"),
        (("raise", "sleep"), 0, Failure.RUNTIME_ERROR, "exit status 70"),
        (("sleep", "error"), 1, Failure.OUT_OF_MEMORY, "rank 1: too much"),
        # Reports of others on it are not the cause, though they may arrive first.
        (("echo of a peer", "late crash"), 1, Failure.RUNTIME_ERROR, "rank 1 was killed by SIGSEGV"),
        (("echo of a peer", "exit"), 1, Failure.RUNTIME_ERROR, "rank 1 ended its process"),
        (("echo of a peer", "error"), 1, Failure.OUT_OF_MEMORY, "rank 1: too much"),
        (("echo of a peer", "late crash", "late"), 1, Failure.RUNTIME_ERROR, "rank 1 was killed by SIGSEGV"),
    ],
)
def test_the_rank_that_fell_first_is_named(
    zygote: Zygote,
    words: tuple[str, ...],
    rank: int,
    failure: Failure,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_module, "CAUSE_S", 20.0)  # on a busy machine a process takes its time to crash
    with Gang(zygote, PROGRAM, len(words), None) as gang:
        failed = fall(gang, *words)
    assert (failed.rank, failed.failure) == (rank, failure)
    assert message in str(failed)


def test_the_leaders_report_on_a_rank_that_has_ended_is_waited_for(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "CAUSE_S", 0.05)
    first, second = (psutil.Process(reply.pid) for reply in do(gang, "nothing", "nothing"))
    leader = first.parent()
    assert leader is not None
    leader.suspend()
    second.kill()
    assert select.select([gang.processes.pidfds[1]], [], [], SLACK_S)[0]
    resume = threading.Timer(0.5, leader.resume)
    resume.start()
    failed = fall(gang, "echo of a peer", "nothing")
    resume.join()
    assert failed.rank == 1 and "killed by SIGKILL" in str(failed)


def test_a_gang_is_whole_until_a_rank_ends(gang: Gang) -> None:
    assert gang.processes.all_run()
    gang.processes.freeze()
    assert gang.processes.all_run()
    gang.processes.thaw()
    fall(gang, "sleep", "exit")
    assert not gang.processes.all_run()


def test_output_is_kept(gang: Gang) -> None:
    do(gang, "print", "nothing")  # by itself: on a busy machine the other rank has fallen before it is written
    fall(gang, "nothing", "exit")
    assert gang.output.startswith("rank 0: word of rank\nrank 0: word of rank\n")


@pytest.mark.parametrize("language", ["Python", "C"])
def test_output_without_a_line_break_or_a_flush_is_kept_of_every_rank(gang: Gang, language: str) -> None:
    """Both buffered what they wrote to a pipe, and no rank ends by itself: the buffers were lost."""
    do(gang, f"print in {language} one\ntwo", f"print in {language} three")
    assert sorted(gang.output.splitlines()) == ["rank 0: one", "rank 0: two", "rank 1: three"]
    assert gang.output_of(0) == "one\ntwo"


def test_output_before_a_crash_is_kept(gang: Gang) -> None:
    fall(gang, "nothing", "print and crash here")
    assert gang.output == "rank 1: here\n"


def test_ranks_that_wait_are_a_deadlock(gang: Gang) -> None:
    failed = miss_deadline(gang, "nothing", "sleep")
    assert (failed.failure, failed.rank) == (Failure.DEADLOCK, 1)
    assert "rank 1: idle" in str(failed)
    assert "rank 0" not in str(failed)


def test_a_rank_that_computes_is_a_timeout(gang: Gang) -> None:
    failed = miss_deadline(gang, "sleep", "spin")
    assert (failed.failure, failed.rank) == (Failure.TIMEOUT, 1)
    assert "rank 0: idle; rank 1: busy" in str(failed)


def test_a_rank_that_spins_in_a_wait_is_a_deadlock(gang: Gang) -> None:
    failed = miss_deadline(gang, "spin", "sleep", heap=Waits(None))
    assert failed.failure is Failure.DEADLOCK
    assert "rank 0: waits for signal 0; rank 1: waits for signal 1" in str(failed)


def test_what_arrived_while_the_evaluator_was_held_up_is_read_before_the_deadline_counts(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that had replied in time was called a deadlock."""

    class HeldUp(ThreadWatch):
        def look(self) -> None:
            if not replied.is_set():
                select.select([gang._ranks[1].sock], [], [], SLACK_S)
                time.sleep(max(0.0, began + timeout_s + 0.1 - time.monotonic()))
                replied.set()

    do(gang, "nothing", "nothing", timeout_s=60.0)
    monkeypatch.setattr(gang_module, "ThreadWatch", HeldUp)
    replied, timeout_s, began = threading.Event(), 0.3, time.monotonic()
    assert [did.word for did in do(gang, "nothing", "nap", timeout_s=timeout_s)] == ["nothing", "nap"]
    assert replied.is_set() and time.monotonic() - began > timeout_s


def test_ranks_that_wait_for_good_are_not_waited_for(gang: Gang) -> None:
    """A kernel that deadlocked took its whole deadline."""
    began = time.monotonic()
    failed = fall(gang, "sleep", "sleep", timeout_s=500, heap=Waits(UnmetWait(0, 1, 1)))
    assert time.monotonic() - began < SLACK_S
    assert (failed.failure, failed.rank) == (Failure.DEADLOCK, 0)
    assert str(failed) == (
        "every unfinished rank waits for another, and no thread runs that could signal. "
        "rank 0: waits for signal 0; rank 1: waits for signal 1"
    )


def test_freezing_stops_threads_too(gang: Gang) -> None:
    pid = do(gang, "spin in a thread", "nothing")[0].pid
    threads = psutil.Process(pid).num_threads()
    assert threads >= 2
    gang.processes.freeze()
    before = gang.processes.processor_ticks()
    time.sleep(0.2)
    assert gang.processes.processor_ticks() == before
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    gang.processes.thaw()
    until(lambda: gang.processes.processor_ticks() != before)


def test_a_thread_in_a_call_of_the_kernel_is_waited_for_and_its_time_is_reported(gang: Gang) -> None:
    """The main thread had stopped long before: outputs were still being written, and the clock had been read."""
    do(gang, "nothing", "nothing")
    gang.processes.freeze()
    gang.processes.thaw()
    pid = do(gang, "read in a thread", "nothing")[0].pid
    at_work_ns = gang.processes.freeze()
    letters = {
        thread: Path(f"/proc/{pid}/task/{thread}/stat").read_text().split()[2]
        for thread in os.listdir(f"/proc/{pid}/task")
    }
    assert set(letters.values()) == {"T"}
    assert at_work_ns > 1_000_000
    gang.processes.thaw()


def test_a_thread_is_stopped_whose_main_thread_has_ended(gang: Gang) -> None:
    """The state of the process is then that of a zombie, whatever its other threads do."""
    with pytest.raises(GangFailed):
        do(gang, "end the main thread", "nothing", timeout_s=0.5)
    gang.processes.freeze()
    before = gang.processes.processor_ticks()
    time.sleep(0.1)
    assert gang.processes.processor_ticks() == before


def test_freezing_ends_what_ranks_started(zygote: Zygote) -> None:
    """A child that ran on could write results past the clock, or slow the baseline."""
    with Gang(zygote, PROGRAM, 2, Confinement(1 << 30, allow_processes=True)) as gang:
        ranks = [psutil.Process(reply.pid) for reply in do(gang, "fork", "orphan")]
        leader = ranks[0].parent()
        assert leader is not None

        def orphans() -> list[psutil.Process]:
            family = [child for child in leader.children(recursive=True) if child not in ranks]
            return [child for child in family if child.status() != psutil.STATUS_ZOMBIE]

        until(lambda: len(orphans()) == 2)  # the orphan finds its new parent when its own has ended
        gang.processes.freeze()
        assert orphans() == []
        assert [rank.status() for rank in ranks] == [psutil.STATUS_STOPPED] * 2
        gang.processes.thaw()
        assert len(do(gang, "nothing", "nothing")) == 2


def test_a_frozen_gang_can_be_ended(zygote: Zygote) -> None:
    with Gang(zygote, PROGRAM, 2, None) as gang:
        pids = [reply.pid for reply in do(gang, "nothing", "nothing")]
        gang.processes.freeze()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_waits_for_a_processor_count_from_the_opening_of_the_gate(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that tried processors on its way to the gate was delayed in nearly every block, on an idle machine too."""
    waited, events = iter([(1000, 70), (1020, 75)]), list[str]()

    def so_far() -> tuple[int, int]:
        events.append("looked")
        return next(waited)

    monkeypatch.setattr(gang.processes, "run_delays_ns", so_far)
    orders = [Do(("block", "block"))] * 2
    gang.run_block(orders, Did, timeout_s=PATIENCE_S, stage=lambda: events.append("staged"))
    assert events == ["staged", "looked", "looked"] and gang.run_delays_ns == (20, 5)


def test_speaking_out_of_turn_is_tampering(gang: Gang) -> None:
    do(gang, "twice", "nothing")
    until(lambda: gang._ranks[0].pending())  # the second word may still be on its way
    failed = fall(gang, "nothing", "nothing")
    assert (failed.failure, failed.rank) == (Failure.INTEGRITY, 0)
    assert "out of turn" in str(failed)


def test_another_reply_than_asked_for_is_tampering(gang: Gang) -> None:
    with pytest.raises(GangFailed, match=r"rank [01] sent .*'Did' arrived where Armed or Failed was due"):
        gang.exchange([Do(("nothing", "nothing"))] * 2, Armed, timeout_s=PATIENCE_S)


def test_what_nobody_waits_for_does_not_pile_up(zygote: Zygote) -> None:
    before = psutil.Process().memory_info().rss
    with Gang(zygote, PROGRAM, 2, None) as gang:
        assert fall(gang, "flood", "sleep", timeout_s=1.0).failure in (Failure.DEADLOCK, Failure.INTEGRITY)
        assert psutil.Process().memory_info().rss - before < 200 << 20


def test_a_rank_that_reads_nothing_does_not_stop_the_evaluator(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's buffer fills up; the deadline must pass all the same."""
    gang.send([Do(("sleep", "sleep"))] * 2)
    for wire in gang._ranks:
        wire.sock.settimeout(0.1)
    began = time.monotonic()
    gang.send([Do(("nothing", "nothing"))] * 2, raw=bytes(8 << 20))
    with pytest.raises(GangFailed):
        gang.collect(Did, timeout_s=0.3)
    assert time.monotonic() - began < SLACK_S


def test_an_unknown_program_is_infrastructure_failure(zygote: Zygote) -> None:
    with Gang(zygote, "no_such_module", 1, None) as gang:
        assert "exit status 70" in str(fall(gang, "nothing"))
        assert "ModuleNotFoundError" in gang.output


def test_a_zygote_that_is_gone_is_infrastructure_failure() -> None:
    zygote = Zygote(trusted=True)
    zygote.wait_until_ready()
    zygote.close()
    zygote.close()
    assert not zygote.alive
    with pytest.raises(InfrastructureError, match="the zygote is gone"):
        Gang(zygote, PROGRAM, 1, None)


def test_confined_ranks_without_a_sandbox(zygote: Zygote) -> None:
    """What holds in mode "limits": no processes."""
    with Gang(zygote, PROGRAM, 1, Confinement(memory_bytes=1 << 30)) as gang:
        failed = fall(gang, "fork")
        assert "exit status 70" in str(failed)
        assert "PermissionError" in gang.output
