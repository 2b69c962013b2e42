"""Who evaluates, and when: pauses, a real service, and one that is killed."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve import service_process
from pkb_gym.serve.service_process import ServiceProcess
from pkb_gym.training.evaluation import owner
from pkb_gym.training.evaluation.owner import EvaluationSchedule, start_evaluation
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock

QUICK = EvalConfig(device="cpu", world_size=2, size="tiny", language="cpp", until="compile")


class Noting:
    """A pausable evaluator, and memory, that write down what is done to them."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def pause(self, timeout_s):
        self.done.append("shut")

    def resume(self):
        self.done.append("open")

    def offload(self):
        self.done.append("offload")

    def restore(self):
        self.done.append("restore")

    def evaluate(self, *_):
        self.done.append("evaluate")

    def close(self):
        self.done.append("close")


def test_a_reward_phase_has_the_machine_for_itself():
    noting = Noting()
    evaluation = EvaluationSchedule(noting, HostGroup(), pausable=noting)
    with evaluation.reward_phase(PhaseClock(), noting):
        noting.evaluate()
    evaluation.close()
    assert evaluation.takes_turns
    assert noting.done == ["shut", "offload", "open", "evaluate", "shut", "restore", "close"]


def test_it_is_over_when_it_fails():
    noting = Noting()
    evaluation = EvaluationSchedule(noting, HostGroup(), pausable=noting)
    with pytest.raises(ZeroDivisionError), evaluation.reward_phase(PhaseClock(), noting):
        raise ZeroDivisionError
    assert noting.done == ["shut", "offload", "open", "shut", "restore"]


def test_evaluations_of_their_own_machine_need_no_turns():
    noting = Noting()
    evaluation = EvaluationSchedule(noting, HostGroup())
    with evaluation.reward_phase(PhaseClock(), noting):
        noting.evaluate()
    assert not evaluation.takes_turns and noting.done == ["evaluate"]


def test_an_evaluator_that_cannot_be_paused_stops_nothing(caplog):
    class Stuck(Noting):
        def pause(self, timeout_s):
            raise InfrastructureError("gone")

        resume = pause

    stuck = Stuck()
    stuck.resume = lambda: stuck.pause(0)
    with EvaluationSchedule(stuck, HostGroup(), pausable=stuck).reward_phase(PhaseClock()):
        pass
    assert "does not resume" in caplog.text and "may still run" in caplog.text


@pytest.mark.parametrize(
    ("mode", "arguments", "words"),
    [
        ("inline", {"gpus": ["2"]}, "takes neither evaluation GPUs nor a url"),
        ("inline", {"url": "http://127.0.0.1:1"}, "takes neither evaluation GPUs nor a url"),
        ("colocated", {"url": "http://127.0.0.1:1"}, "takes no url"),
        ("dedicated", {"gpus": ["2"], "url": "http://127.0.0.1:1"}, "not both"),
        ("inline", {"services": 2}, "several evaluation services"),
        ("dedicated", {"services": 2, "gpus": ["0", "1", "2"]}, "3 GPUs cannot be divided equally"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(mode, arguments, words):
    with pytest.raises(ConfigError, match=words):
        start_evaluation(mode, HostGroup(), **arguments)


@pytest.mark.slow
def test_a_service_that_is_killed_is_started_anew(tmp_path, monkeypatch):
    """Under `colocated` it is shut while the policy generates; killed, it is there again, and shut again."""
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    evaluation = start_evaluation("colocated", HostGroup())
    client, service = evaluation.evaluator, evaluation._services[0]
    try:
        assert client.status().paused
        killed = service.pid
        os.kill(killed, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while (service.pid == killed or not client.status().paused) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert service.pid != killed and client.status().paused
        with evaluation.reward_phase(PhaseClock()):
            assert not client.status().paused
            found = client.evaluate(find_problem("AllReduce"), "int solution = ;", QUICK)
            assert found.failure is Failure.COMPILE_ERROR
        assert client.status().paused
    finally:
        evaluation.close()
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)


def test_services_side_by_side_wait_for_no_timing_of_another(monkeypatch):
    """With one folder for temporary files all had one lock: seven services timed no more than one."""
    done: list[str] = []
    gpus: list[str] = []
    folders: list[Path] = []

    def start(command, env, **_):
        folders.append(Path(env["TMPDIR"]))
        assert folders[-1].is_dir() and not any(folders[-1].iterdir())
        queue = os.open(folders[-1].parent, os.O_RDONLY)
        fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it: the service would wait for ever
        os.close(queue)
        done.append(command[2])
        gpus.append(env["CUDA_VISIBLE_DEVICES"])
        process = Mock(pid=1)
        process.wait.side_effect = lambda *_: released.wait(60)
        process.terminate.side_effect = released.set
        return process

    released = threading.Event()
    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr(service_process, "read_ready", lambda *_: Mock(url="http://127.0.0.1:1"))
    monkeypatch.setattr(owner, "share_out_processors", lambda count: [(2, 3), (4, 5)])
    monkeypatch.setattr(owner, "measure_processors", lambda processors: done.append(f"measured {processors}"))
    schedule = start_evaluation("dedicated", HostGroup(), services=2)
    try:
        assert done == ["measured (2, 3)", "2,3", "4,5"] and gpus == ["", ""]
        assert len({folder.parent for folder in folders}) == 2, "the folder above is the queue of those that wait"
    finally:
        schedule.close()
    assert not any(folder.exists() for folder in folders)


def test_services_share_out_the_gpus_that_are_named(monkeypatch):
    started: list[tuple[object, ...]] = []

    def start(gpus: object, processors: object) -> Mock:
        started.append((gpus, processors))
        return Mock(url="http://127.0.0.1:1", token="token")

    monkeypatch.setattr(owner, "ServiceProcess", start)
    monkeypatch.setattr(owner, "share_out_processors", lambda count: [(2, 3), (4, 5)])
    monkeypatch.setattr(owner, "measure_processors", lambda _: started.append(()))
    start_evaluation("dedicated", HostGroup(), services=2, gpus=["4", "5", "6", "7"]).close()
    assert started == [(("4", "5"), (2, 3)), (("6", "7"), (4, 5))]


def test_a_service_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="did not start"):
        ServiceProcess(start_s=5)
