"""Which processes an evaluator keeps ready, and when they are ended; zygotes and gangs are stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import gang_pool
from pkb_gym.engine.evaluators.arbiter import DeviceArbiter
from pkb_gym.engine.evaluators.gang_pool import PYTHON_IMPORTS, TRITON_IMPORTS, GangPool
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.config import EvalConfig, Language, ResolvedConfig, resolve
from pkb_gym.problems.catalogue import find_problem
from tests.engine.evaluators.threads import A_MOMENT_S, Visitor, in_thread, joined, running
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("locks_apart")

PROBLEM = find_problem("AllReduce")


class Processes:
    """What a pool has started; ending a gang waits for `may_end`, and preparing one fails with `error`."""

    def __init__(self) -> None:
        self.zygotes: list[FakeZygote] = []
        self.references: list[FakeReference] = []
        self.libraries: list[FakeLibraries] = []
        self.gangs: list[FakeGang] = []
        self.closed: list[object] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: InfrastructureError | None = None
        self.has_compiler = True

    def build(self, files: tuple[str, ...], _: object) -> bytes:
        if not self.has_compiler:
            raise InfrastructureError("no compiler")
        return files[0].encode()


class FakeZygote:
    def __init__(self, processes: Processes, trusted: bool, preloaded: bytes | None, low_priority: bool) -> None:
        self.preloaded, self.low_priority = preloaded, low_priority
        self.trusted, self.alive, self.waited_for, self._processes = trusted, True, 0, processes
        processes.zygotes.append(self)

    def wait_until_ready(self) -> None:
        self.waited_for += 1

    def close(self) -> None:
        self.alive = False
        self._processes.closed.append(self)


class FakeLibraries:
    def __init__(self, processes: Processes, device: str) -> None:
        self.device, self._processes = device, processes
        processes.libraries.append(self)

    def close(self) -> None:
        self._processes.closed.append(self)


class FakeReference:
    def __init__(
        self,
        processes: Processes,
        zygote: FakeZygote,
        device: str,
        world_size: int,
        threads: int,
        libraries: FakeLibraries,
        ranks_per_gpu: int,
    ) -> None:
        assert zygote.trusted and libraries.device == device
        self.ranks_per_gpu = ranks_per_gpu
        self.kind, self.threads, self.is_sound, self.closed = (device, world_size), threads, True, False
        processes.references.append(self)

    def close(self) -> None:
        self.closed = True


class FakeGang:
    is_whole = True

    def __init__(
        self,
        processes: Processes,
        zygote: FakeZygote,
        device: str,
        world_size: int,
        *,
        allow_processes: bool,
        ranks_per_gpu: int = 1,
    ) -> None:
        assert not zygote.trusted
        self.ranks_per_gpu = ranks_per_gpu
        self.kind = (device, world_size, allow_processes)
        self.prepared_for: tuple[str, bool] | None = None
        self.closed, self._processes = False, processes
        processes.gangs.append(self)

    def prepare(self, dialect: str, *, one_queue: bool, imports: tuple[str, ...], all_gpus: bool) -> None:
        if self._processes.error is not None:
            raise self._processes.error
        self.prepared_for, self.imports, self.all_gpus = (dialect, one_queue), imports, all_gpus

    def close(self) -> None:
        assert self._processes.may_end.wait(PATIENCE_S)
        self.closed = True
        self._processes.closed.append(self)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(gang_pool, "Zygote", lambda **settings: FakeZygote(processes, **settings))
    monkeypatch.setattr(gang_pool, "build_for_host", processes.build)
    monkeypatch.setattr(gang_pool, "build_handovers", lambda device, _: FakeLibraries(processes, device))
    monkeypatch.setattr(gang_pool, "ReferenceGang", lambda *args: FakeReference(processes, *args))
    monkeypatch.setattr(gang_pool, "CandidateGang", lambda *args, **kwargs: FakeGang(processes, *args, **kwargs))
    return processes


@pytest.fixture
def arbiter() -> DeviceArbiter:
    return DeviceArbiter()


def new_pool(arbiter: DeviceArbiter, standby_gangs: int) -> GangPool:
    return GangPool(arbiter, None, standby_gangs)  # type: ignore[arg-type]  # nothing is compiled


@pytest.fixture
def pool(processes: Processes, arbiter: DeviceArbiter) -> Iterator[GangPool]:
    pool = new_pool(arbiter, 2)
    yield pool
    processes.may_end.set()
    pool.stop()
    pool.close()


def config_of(language: Language, world_size: int = 2, device: str = "cuda") -> ResolvedConfig:
    requested = EvalConfig(device=device, world_size=world_size)  # type: ignore[arg-type]
    return resolve(requested, PROBLEM, device=device, language=language, memory_total_bytes=1 << 36, gpus=8)  # type: ignore[arg-type]


def gang_for(
    pool: GangPool, language: Language, world_size: int = 2, source: str = "a kernel"
) -> AbstractContextManager[FakeGang]:
    return pool.candidate_gang(config_of(language, world_size), source)  # type: ignore[return-value]


def test_both_zygotes_start_at_once_and_stay(pool: GangPool, processes: Processes) -> None:
    """Each takes seconds to import torch."""
    trusted = pool.zygote(trusted=True)
    assert [zygote.trusted for zygote in processes.zygotes] == [True, False]
    assert pool.zygote(trusted=True) is trusted and pool.zygote(trusted=False) is processes.zygotes[1]
    assert len(processes.zygotes) == 2
    assert [zygote.waited_for for zygote in processes.zygotes] == [2, 1]


@pytest.mark.parametrize(("has_compiler", "preloaded"), [(True, b"rankside/gloo_loop.cpp"), (False, None)])
def test_zygotes_preload_a_library_where_one_can_be_compiled(
    pool: GangPool, processes: Processes, has_compiler: bool, preloaded: bytes | None
) -> None:
    processes.has_compiler = has_compiler
    pool.start_zygotes()
    assert [zygote.preloaded for zygote in processes.zygotes] == [preloaded, preloaded]


def test_a_zygote_that_died_is_replaced(pool: GangPool, processes: Processes) -> None:
    first = pool.zygote(trusted=False)
    processes.zygotes[1].alive = False
    assert not pool.is_sound
    assert pool.zygote(trusted=False) is not first and pool.is_sound
    assert processes.closed == [first], "with its folder"
    assert [zygote.trusted for zygote in processes.zygotes] == [True, False, False]


def test_handovers_are_compiled_once_for_each_device_and_closed_in_the_end(
    pool: GangPool, processes: Processes
) -> None:
    first = pool.handovers("cpu")
    pool.reference("cpu", 2)
    assert pool.handovers("cpu") is first and pool.handovers("cuda") is not first
    assert [libraries.device for libraries in processes.libraries] == ["cpu", "cuda"]
    pool.stop()
    pool.close()
    assert set(processes.libraries) <= set(processes.closed)


def test_a_reference_gang_is_kept_for_each_device_and_world_size(pool: GangPool, processes: Processes) -> None:
    first = pool.reference("cpu", 2)
    assert pool.reference("cpu", 2) is first
    assert [pool.reference(*kind) for kind in (("cpu", 4), ("cuda", 2))] == processes.references[1:]  # type: ignore[arg-type]
    assert [gang.kind for gang in processes.references] == [("cpu", 2), ("cpu", 4), ("cuda", 2)]
    assert [gang.threads for gang in processes.references] == [host.threads_per_rank(n) for n in (2, 4, 2)]


@pytest.mark.parametrize(("spare", "threads"), [(False, 16), (True, 1)])
def test_a_pool_on_spare_processors_leaves_them_to_others(
    processes: Processes, arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch, spare: bool, threads: int
) -> None:
    monkeypatch.setattr(host, "processors", lambda: 32)
    pool = GangPool(arbiter, None, 0, on_spare_processors=spare)  # type: ignore[arg-type]  # nothing is compiled
    gangs = [pool.reference("cpu", 2, lane=lane) for lane in (0, 1, 0)]
    assert gangs[0] is gangs[2] is not gangs[1], "runs side by side have a gang each"
    assert [zygote.low_priority for zygote in processes.zygotes] == [spare, spare]
    assert {gang.threads for gang in gangs} == {threads}  # type: ignore[attr-defined]
    pool.stop()
    pool.close()


def test_a_reference_gang_that_failed_is_replaced(pool: GangPool, processes: Processes) -> None:
    first = pool.reference("cpu", 2)
    processes.references[0].is_sound = False
    assert pool.reference("cpu", 2) is not first


@pytest.mark.parametrize(("language", "allow_processes"), [("cpp", False), ("python", False)])
def test_on_the_cpu_a_gang_is_forked_for_each_candidate(
    pool: GangPool, processes: Processes, language: Language, allow_processes: bool
) -> None:
    gang = pool.candidate_gang(config_of(language, device="cpu"), "a source")
    assert processes.gangs == [gang]
    assert (processes.gangs[0].kind, processes.gangs[0].prepared_for) == (("cpu", 2, allow_processes), None)
    assert running("pkb-standby") == []


@pytest.mark.parametrize(
    ("language", "world_size", "allow_processes", "prepared_for"),
    [
        ("cuda", 2, False, ("native", True)),
        ("cuda", 4, False, ("native", True)),
        ("python", 2, False, ("python", False)),
        ("triton", 2, True, ("python", False)),
    ],
)
def test_each_kind_of_source_gets_gangs_prepared_for_it(
    pool: GangPool,
    processes: Processes,
    language: Language,
    world_size: int,
    allow_processes: bool,
    prepared_for: tuple[str, bool],
) -> None:
    with gang_for(pool, language, world_size) as gang:
        assert (gang.kind, gang.prepared_for) == (("cuda", world_size, allow_processes), prepared_for)
    until(lambda: len(processes.gangs) >= 2 and processes.gangs[-1].prepared_for)
    assert {(made.kind, made.prepared_for) for made in processes.gangs} == {(gang.kind, prepared_for)}


@pytest.mark.parametrize(
    ("language", "imports"),
    [("cuda", ()), ("python", PYTHON_IMPORTS), ("triton", (*PYTHON_IMPORTS, *TRITON_IMPORTS))],
)
def test_gangs_that_stand_by_have_imported_what_their_candidates_use(
    pool: GangPool, processes: Processes, language: Language, imports: tuple[str, ...]
) -> None:
    """A check spent seconds on it."""
    with gang_for(pool, language) as gang:
        assert gang.imports == imports


def test_the_end_of_gangs_can_be_waited_for(pool: GangPool, processes: Processes) -> None:
    processes.may_end.clear()
    with gang_for(pool, "cuda") as gang:
        pass
    waiting = in_thread(pool.wait_for_endings)
    assert not gang.closed and waiting.is_alive()
    processes.may_end.set()
    joined(waiting)
    assert gang.closed


def test_a_kernel_with_streams_of_its_own_has_all_queues(pool: GangPool) -> None:
    with gang_for(pool, "cuda", source="cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);") as gang:
        assert gang.prepared_for == ("native", False)


def test_ranks_that_start_nvshmem_see_all_gpus_and_none_stand_by(pool: GangPool, processes: Processes) -> None:
    with gang_for(pool, "cuda", source="#include <nvshmem.h>") as gang:
        assert gang.all_gpus and gang.prepared_for == ("native", False)
        assert not threading.Event().wait(A_MOMENT_S) and processes.gangs == [gang]
    with gang_for(pool, "cuda") as gang:
        assert not gang.all_gpus


@pytest.mark.parametrize(("language", "standing_by"), [("cuda", 4), ("python", 2)])
def test_half_as_many_gangs_with_process_groups_stand_by(
    processes: Processes, arbiter: DeviceArbiter, language: Language, standing_by: int
) -> None:
    """Each has NCCL's buffers besides its context."""
    pool = new_pool(arbiter, 4)
    with gang_for(pool, language):
        until(lambda: sum(gang.prepared_for is not None for gang in processes.gangs) > standing_by)
        assert not threading.Event().wait(A_MOMENT_S) and len(processes.gangs) == standing_by + 1
    pool.stop()
    pool.close()


def test_gangs_of_one_kind_stand_by_for_all_candidates(pool: GangPool, processes: Processes) -> None:
    for _ in range(3):
        with gang_for(pool, "cuda"):
            pass
    assert len(running("pkb-standby")) == 1
    with gang_for(pool, "python"):
        assert len(running("pkb-standby")) == 2


def test_ranks_that_share_a_gpu_have_gangs_of_their_own(pool: GangPool, processes: Processes) -> None:
    """Every rank of a gang that stands by has a context on its GPU: fewer stand by where ranks share one."""
    requested = EvalConfig(device="cuda", ranks_per_gpu=2, world_size=2)
    config = resolve(requested, PROBLEM, device="cuda", language="cuda", memory_total_bytes=1 << 36, gpus=1)
    with pool.candidate_gang(config, "a kernel") as gang, gang_for(pool, "cuda") as other:
        assert (gang.ranks_per_gpu, other.ranks_per_gpu) == (2, 1)  # type: ignore[attr-defined]
        until(lambda: [made.ranks_per_gpu for made in processes.gangs].count(2) == 2)
    references = [pool.reference("cuda", 2, shared) for shared in (1, 2, 2)]
    assert [each.ranks_per_gpu for each in references] == [1, 2, 2]  # type: ignore[attr-defined]
    assert references[1] is references[2] is not references[0]


def test_a_gang_is_ended_in_the_background_but_before_any_timing(
    pool: GangPool, processes: Processes, arbiter: DeviceArbiter
) -> None:
    with gang_for(pool, "cuda") as gang:
        assert not gang.closed
        processes.may_end.clear()
    assert not gang.closed, "nobody waits for that"
    timing = Visitor(arbiter.timing())
    assert timing.is_kept_out
    processes.may_end.set()
    assert timing.came_in and gang.closed
    timing.leave()


def test_a_gang_is_ended_after_an_error_too(pool: GangPool) -> None:
    with pytest.raises(KeyError), gang_for(pool, "cuda") as gang:
        raise KeyError
    until(lambda: gang.closed)


def test_a_gang_that_cannot_be_prepared_is_ended(processes: Processes, arbiter: DeviceArbiter) -> None:
    pool = new_pool(arbiter, 0)
    processes.error = InfrastructureError("no memory left")
    with pytest.raises(InfrastructureError, match="no memory left"), gang_for(pool, "cuda"):
        pytest.fail("there is none")
    assert [gang.closed for gang in processes.gangs] == [True]
    pool.stop()
    pool.close()


def test_none_stands_by_where_none_is_wanted(processes: Processes, arbiter: DeviceArbiter) -> None:
    pool = new_pool(arbiter, 0)
    with gang_for(pool, "python") as gang:
        assert not threading.Event().wait(A_MOMENT_S) and processes.gangs == [gang]
    until(lambda: gang.closed)
    pool.stop()
    pool.close()


def test_gangs_do_not_stand_by_anew_in_a_pause(pool: GangPool, processes: Processes, arbiter: DeviceArbiter) -> None:
    with gang_for(pool, "cuda") as taken:
        until(lambda: len(processes.gangs) == 3)
    assert arbiter.pause(PATIENCE_S)
    assert taken.closed, "what ends in the background has ended"
    until(lambda: all(gang.prepared_for for gang in processes.gangs))
    lent = [gang_for(pool, "cuda") for _ in range(2)]
    taken_in_pause = [each.__enter__() for each in lent]  # by candidates that had begun before
    assert {gang.kind for gang in taken_in_pause} == {taken.kind}
    assert not threading.Event().wait(A_MOMENT_S) and len(processes.gangs) == 3
    arbiter.resume()
    until(lambda: len(processes.gangs) == 5)
    for each in lent:
        each.__exit__(None, None, None)


def ended(pool: GangPool) -> None:
    pool.stop()
    pool.close()


def test_closing_ends_all_that_stand_by_and_waits_for_what_is_ending(pool: GangPool, processes: Processes) -> None:
    pool.reference("cuda", 2)
    with gang_for(pool, "cuda"):
        until(lambda: len(processes.gangs) >= 2)
        processes.may_end.clear()
    closer = in_thread(lambda: ended(pool))
    closer.join(A_MOMENT_S)
    assert closer.is_alive()
    processes.may_end.set()
    joined(closer)
    assert all(gang.closed for gang in (*processes.gangs, *processes.references))
    assert not any(zygote.alive for zygote in processes.zygotes)
    assert running("pkb-standby") == running("pkb-ending") == []


def test_closing_again_changes_nothing(pool: GangPool, processes: Processes) -> None:
    pool.zygote(trusted=True)
    ended(pool)
    closed = list(processes.closed)
    ended(pool)
    assert processes.closed == closed


def test_preparation_is_stopped_before_its_zygotes_go(
    pool: GangPool, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails because its zygote went is no news."""
    with gang_for(pool, "cuda"):
        until(lambda: len(processes.gangs) >= 2)
    order: list[str] = []
    monkeypatch.setattr(gang_pool.Standby, "stop", lambda self: order.append("stop"))
    monkeypatch.setattr(FakeZygote, "close", lambda self: order.append("zygote"))
    pool.stop()
    monkeypatch.undo()
    assert order == ["stop", "zygote", "zygote"]


def test_a_pool_that_was_closed_starts_nothing(pool: GangPool, processes: Processes) -> None:
    pool.zygote(trusted=True)
    assert pool.is_sound
    ended(pool)
    assert not pool.is_sound
    for use in (
        lambda: pool.zygote(trusted=False),
        lambda: pool.reference("cpu", 2),
        lambda: pool.candidate_gang(config_of("cpp", device="cpu"), ""),
        lambda: gang_for(pool, "cuda").__enter__(),
    ):
        with pytest.raises(InfrastructureError, match="this evaluator has been closed"):
            use()
    assert len(processes.zygotes) == 2 and processes.gangs == []


def test_after_a_fault_of_this_machine_processes_are_made_anew(pool: GangPool, processes: Processes) -> None:
    reference = pool.reference("cuda", 2)
    with gang_for(pool, "cuda"):
        until(lambda: len(processes.gangs) >= 2)
    processes.zygotes[1].alive = False
    pool.discard_broken()
    assert running("pkb-standby") == []
    until(lambda: all(gang.closed for gang in processes.gangs))
    assert not processes.references[0].closed, "another evaluation may be in the middle of something with it"
    assert pool.reference("cuda", 2) is not reference and processes.references[0].closed
    assert [zygote.trusted for zygote in processes.closed if isinstance(zygote, FakeZygote)] == [False]
    with gang_for(pool, "cuda") as gang:
        assert not gang.closed


def test_a_fault_in_one_lane_ends_no_reference_gang_of_another(pool: GangPool, processes: Processes) -> None:
    """Whoever is in the middle of something there would fail as well."""
    first, second = pool.reference("cuda", 2, 1, 0), pool.reference("cuda", 2, 1, 1)
    pool.discard_broken()
    assert pool.reference("cuda", 2, 1, 1) is not second
    assert [gang.closed for gang in processes.references] == [False, True, False]
    assert pool.reference("cuda", 4, 1, 0) is not first
    assert [gang.closed for gang in processes.references] == [True, True, False, False], "of all kinds in the lane"


def test_gangs_that_end_at_the_same_time_have_all_ended_when_the_pool_closes(
    pool: GangPool, processes: Processes
) -> None:
    processes.may_end.clear()
    visitors = [Visitor(gang_for(pool, "cuda")) for _ in range(3)]
    assert all(visitor.came_in for visitor in visitors)
    leaving = [in_thread(visitor.leave) for visitor in visitors]
    processes.may_end.set()
    for one in leaving:
        joined(one)
    pool.stop()
    pool.close()
    assert all(gang.closed for gang in processes.gangs)


def test_what_is_sound_is_kept_after_a_fault(pool: GangPool, processes: Processes) -> None:
    pool.zygote(trusted=True)
    pool.discard_broken()
    assert all(zygote.alive for zygote in processes.zygotes) and len(processes.zygotes) == 2


def test_many_threads_share_a_pool(pool: GangPool, processes: Processes) -> None:
    found: list[object] = []
    threads = [in_thread(lambda: found.append(pool.reference("cpu", 2))) for _ in range(8)]
    for thread in threads:
        joined(thread)
    assert len(found) == 8 and len(set(map(id, found))) == 1 and len(processes.zygotes) == 2
