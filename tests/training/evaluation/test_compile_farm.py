"""CUDA sources are compiled apart from the ranks that judge them."""

from __future__ import annotations

import os
import time

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.training.evaluation import owner
from pkb_gym.training.evaluation.compile_farm import CompileFarm, processors_apart
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.phases import PhaseClock
from tests.training.scripted import config, follow, row, run, submit

CUDA = EvalConfig(device="cuda", world_size=2, size="tiny", language="cuda", until="time")


class Noting:
    """Writes down how far it is asked to go."""

    def __init__(self, name: str, done: list[str], error: Exception | None = None) -> None:
        self._name, self._done, self._error = name, done, error

    def evaluate(self, problem, source, config, progress=None):
        self._done.append(f"{self._name} until {config.until}")
        if self._error is not None:
            raise self._error
        return self._name

    def close(self):
        self._done.append(f"{self._name} closed")


def test_a_source_is_compiled_before_it_is_judged():
    done: list[str] = []
    farm = CompileFarm(Noting("compiler", done), Noting("judge", done))
    assert farm.evaluate(None, "", CUDA) == "judge"
    farm.close()
    assert done == ["compiler until compile", "judge until time", "compiler closed", "judge closed"]


def test_other_languages_are_judged_at_once():
    done: list[str] = []
    farm = CompileFarm(Noting("compiler", done), Noting("judge", done))
    for language in ("python", "cpp"):
        farm.evaluate(None, "", CUDA.model_copy(update={"language": language}))
    assert done == ["judge until time"] * 2


def test_a_farm_that_fails_leaves_the_work_to_the_judge(caplog):
    done: list[str] = []
    farm = CompileFarm(Noting("compiler", done, InfrastructureError("gone")), Noting("judge", done))
    assert farm.evaluate(find_problem("AllReduce"), "", CUDA) == "judge"
    assert "AllReduce: the compile farm failed; the judge compiles" in caplog.text


@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
def test_the_judge_finds_what_the_farm_has_compiled(tmp_path):
    config = CUDA.model_copy(update={"until": "compile"})
    with LocalEvaluator(cache_dir=tmp_path) as compiler, LocalEvaluator(cache_dir=tmp_path) as judge:
        found = CompileFarm(compiler, judge).evaluate(find_problem("AllReduce"), "int solution = ;", config)
    assert found.failure is Failure.COMPILE_ERROR
    assert found.compile is not None and found.compile.cached


@pytest.mark.parametrize("compilers", [-1, 3, 4])
def test_compilers_leave_processors_to_ranks(compilers):
    with pytest.raises(ConfigError, match="this process has 3"):
        processors_apart(compilers, range(3))


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [("inline", {}), ("dedicated", {"services": 2}), ("dedicated", {"url": "http://127.0.0.1:1"})],
)
def test_compilers_are_for_one_service_of_this_node(mode, arguments):
    with pytest.raises(ConfigError, match="compilers have processors apart"):
        start_evaluation(mode, HostGroup(), compilers=1, **arguments)


@pytest.fixture
def started(monkeypatch) -> list[tuple[object, ...]]:
    """What each service is started with, and the end of each; this process has five processors."""
    started: list[tuple[object, ...]] = []

    class Service:
        def __init__(self, gpus, processors, variables=None):
            started.append((gpus, processors, variables))
            self.url, self.token, self.on_restart = f"http://127.0.0.1:{len(started)}", "word", None

        def close(self):
            started.append(("closed",))

    monkeypatch.setattr(owner, "ServiceProcess", Service)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    monkeypatch.setattr(owner, "default_architecture", lambda: "sm_100a")
    return started


def test_each_service_has_its_processors_and_compilers_have_no_gpu(started):
    schedule = start_evaluation("dedicated", HostGroup(), gpus=["2", "3"], compilers=3)
    assert isinstance(schedule.evaluator, CompileFarm) and not schedule.takes_turns
    schedule.close()
    assert started[:2] == [([], (2, 3, 4), {"PKB_CUDA_ARCHITECTURE": "sm_100a"}), (["2", "3"], (0, 1), None)]
    assert started[2:] == [("closed",)] * 2


def test_where_policy_and_ranks_take_turns_the_judge_is_paused_and_compilers_are_not(started, monkeypatch):
    """The policy's GPU is one of the two; sources are compiled while it generates."""
    done: list[str] = []
    monkeypatch.setattr(RemoteEvaluator, "pause", lambda remote, _: done.append(f"{remote.url} paused"))
    monkeypatch.setattr(RemoteEvaluator, "resume", lambda remote: done.append(f"{remote.url} resumed"))
    schedule = start_evaluation("colocated", HostGroup(), gpus=["0", "1"], compilers=3)
    assert isinstance(schedule.evaluator, CompileFarm) and schedule.takes_turns
    assert [gpus for gpus, *_ in started] == [[], ["0", "1"]]
    with schedule.reward_phase(PhaseClock()):
        done.append("judged")
    schedule.close()
    judge = "http://127.0.0.1:2"
    assert done == [f"{judge} paused", f"{judge} resumed", "judged", f"{judge} paused"]


@pytest.mark.usefixtures("emulator_is_built")
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
@pytest.mark.skipif(not os.environ.get("PKB_TEST_EMULATED"), reason="runs by `make emulated`")
def test_a_policy_that_writes_cuda_learns_on_emulated_gpus(policy, monkeypatch, tmp_path):
    """The whole path of a run with GPUs but for the GPUs: the tool, the farm, the judge, rewards and the log."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    new = f"// {time.time_ns()}\n"  # in no cache yet
    source = expert_source(find_problem("AllGather"), "cu")
    follow(monkeypatch, lambda before: submit(f"{new}{source if 'CUDA' in before else 'int solution = ;'}"))
    rows = [
        row("AllGather", device="emulated", language="cuda", prompt=[{"role": "user", "content": word}])
        for word in ("CUDA", "C++")
    ]
    schedule = start_evaluation("dedicated", HostGroup(), compilers=1)
    changes = {"max_completion_length": 2048, "per_device_train_batch_size": 4, "shuffle_dataset": False}
    try:
        run(
            policy,
            schedule.evaluator,
            config(tmp_path / "run", **changes),
            rows,
            schedule=schedule,
            max_turns=1,
            until="check",
        )
    finally:
        schedule.close()
    lines = read_jsonl(tmp_path / "run" / "rollouts.jsonl")
    assert [line["device"] for line in lines] == ["emulated"] * 4
    assert [line["is_right"] for line in lines] == [True, True, False, False]
    assert [line["failure"] for line in lines][2:] == ["compile_error"] * 2
    assert all(line["feedback"]["compile"]["cached"] for line in lines), "the farm has compiled them"
    assert lines[0]["reward"] > lines[2]["reward"]
