"""Which gangs an evaluator keeps ready on GPUs, and when they are ended; the gangs are stand-ins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.local import GangKind, LocalEvaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig, Language, resolve
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.stages import execution_environment
from pkb_gym.problems.catalogue import find_problem, reference_source

PROBLEM = find_problem("AllReduce")
PATIENCE_S = 10.0


class FakeGang:
    is_whole = True

    def __init__(self, kind: GangKind, gate: threading.Event) -> None:
        self.kind, self.closed, self._gate = kind, False, gate

    def close(self) -> None:
        assert self._gate.wait(PATIENCE_S)
        self.closed = True


class Evaluator(LocalEvaluator):
    """Its gangs need no GPU; ending one waits for `gate`."""

    def __init__(self, folder: Path, standby_gangs: int) -> None:
        super().__init__(cache_dir=folder, standby_gangs=standby_gangs)
        self.made: list[FakeGang] = []
        self.gate = threading.Event()
        self.gate.set()

    def _start_gpu_gang(self, kind: GangKind) -> FakeGang:  # type: ignore[override]
        gang = FakeGang(kind, self.gate)
        self.made.append(gang)
        return gang

    def gang(
        self, language: Language, world_size: int = 2, source: str = "a kernel"
    ) -> AbstractContextManager[FakeGang]:
        """As a session asks for it."""
        asked = EvalConfig(device="cuda", world_size=world_size)
        config = resolve(asked, PROBLEM, device="cuda", language=language, memory_total_bytes=1 << 36, gpus=8)
        return self._new_gang(config, source)  # type: ignore[return-value]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.001)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[Evaluator]:
    with Evaluator(tmp_path, standby_gangs=2) as evaluator:
        yield evaluator


@pytest.mark.parametrize(
    ("language", "world_size", "kind"),
    [
        ("cuda", 2, GangKind(2, join=False, allow_processes=False, one_queue=True)),
        ("cuda", 4, GangKind(4, join=False, allow_processes=False, one_queue=True)),
        ("python", 2, GangKind(2, join=True, allow_processes=False)),
        ("triton", 2, GangKind(2, join=True, allow_processes=True)),
    ],
)
def test_each_kind_of_source_gets_gangs_prepared_for_it(
    evaluator: Evaluator, language: Language, world_size: int, kind: GangKind
) -> None:
    with evaluator.gang(language, world_size) as gang:
        assert gang.kind == kind
    assert set(evaluator._standby) == {kind}
    until(lambda: len(evaluator.made) >= 2)
    assert {made.kind for made in evaluator.made} == {kind}


def test_a_kernel_with_streams_of_its_own_has_all_queues(evaluator: Evaluator) -> None:
    with evaluator.gang("cuda", source="cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);") as gang:
        assert gang.kind == GangKind(2, join=False, allow_processes=False)


def test_a_gang_is_ended_in_the_background_but_before_any_timing(evaluator: Evaluator) -> None:
    with evaluator.gang("cuda") as gang:
        assert not gang.closed
        evaluator.gate.clear()
    assert not gang.closed, "nobody waits for that"
    timed = threading.Event()

    def time_it() -> None:
        with evaluator._quiet_devices("cuda"):
            timed.set()

    thread = threading.Thread(target=time_it, daemon=True)
    thread.start()
    assert not timed.wait(0.05)
    evaluator.gate.set()
    assert timed.wait(PATIENCE_S) and gang.closed
    thread.join()


def test_a_gang_is_ended_after_an_error_too(evaluator: Evaluator) -> None:
    with pytest.raises(KeyError), evaluator.gang("cuda") as gang:
        raise KeyError
    until(lambda: gang.closed)


def test_closing_ends_all_that_stand_by_and_waits_for_what_is_ending(evaluator: Evaluator) -> None:
    with evaluator.gang("cuda"):
        until(lambda: len(evaluator.made) >= 2)
        evaluator.gate.clear()
    closer = threading.Thread(target=evaluator.close, daemon=True)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    evaluator.gate.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert all(gang.closed for gang in evaluator.made)
    assert threads("pkb-standby") == threads("pkb-ending") == []


def test_closing_stops_preparation_before_its_zygotes_go(evaluator: Evaluator) -> None:
    with evaluator.gang("cuda"):
        until(lambda: len(evaluator.made) >= 2)
    (standby,) = evaluator._standby.values()
    stopped: list[bool] = []

    class Zygote:
        def close(self) -> None:
            stopped.append(standby._closed)

    evaluator._zygotes[True] = Zygote()  # type: ignore[index,assignment]
    evaluator.close()
    assert stopped == [True]


def test_after_a_fault_of_this_machine_gangs_are_made_anew(evaluator: Evaluator) -> None:
    with evaluator.gang("cuda"):
        until(lambda: len(evaluator.made) >= 2)
    evaluator._discard_broken()
    assert evaluator._standby == {} and threads("pkb-standby") == []
    until(lambda: all(gang.closed for gang in evaluator.made))
    with evaluator.gang("cuda") as gang:
        assert not gang.closed


def test_none_stands_by_where_none_is_wanted(tmp_path: Path) -> None:
    with Evaluator(tmp_path, standby_gangs=0) as evaluator:
        with evaluator.gang("python") as gang:
            assert evaluator.made == [gang] and evaluator._standby == {}
        until(lambda: gang.closed)


def test_only_timings_on_gpus_keep_preparing_out(evaluator: Evaluator) -> None:
    with evaluator._quiet_devices("cpu"), evaluator._quiet.preparing():
        pass
    with evaluator._quiet_devices("cuda"):
        assert evaluator._quiet._timing == 1
    assert evaluator._quiet._timing == 0


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpus, "names", tuple)
    execution_environment.describe.cache_clear()
    yield
    execution_environment.describe.cache_clear()


def test_without_a_gpu_a_python_source_is_imported_and_that_is_all(
    local_evaluator: LocalEvaluator, without_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: True)
    feedback = local_evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cuda"))
    assert (feedback.failure, feedback.stage) == (None, Stage.COMPILE), feedback.message
    assert feedback.message == "imported; this machine has no GPU, so it was not run"


def test_without_a_gpu_and_nvcc_cuda_is_refused(
    evaluator: Evaluator, without_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: False)
    with pytest.raises(ConfigError, match="neither an NVIDIA GPU nor nvcc"):
        evaluator.evaluate(PROBLEM, reference_source(PROBLEM), EvalConfig(device="cuda"))
