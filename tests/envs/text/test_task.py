"""The task text on machines with and without GPUs."""

from __future__ import annotations

import re

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs import PKBEnv
from pkb_gym.envs.env import LANGUAGES
from pkb_gym.envs.text.contracts import CPP, CUDA, PYTHON_ON
from pkb_gym.envs.text.task import task_text
from pkb_gym.envs.text.topology import NO_GPU
from pkb_gym.envs.text.turn import Style
from pkb_gym.kernels.examples import examples
from pkb_gym.problems.catalogue import find_problem
from tests.docs.pages import ROOT
from tests.fake_gpus import pretend

INCLUDE = ROOT / "pkb_gym" / "engine" / "include"
H200 = ("NVIDIA H200",) * 4
pytestmark = pytest.mark.usefixtures("evaluator")


def text_on(device: str, style: Style = "full", **requested) -> str:
    problem = find_problem("AllReduce")
    machine = this_machine()
    config = machine.resolve(EvalConfig(device=device, **requested), problem)
    return task_text(problem, config, LANGUAGES[config.device], machine, style)


def test_auto_means_gpus_where_there_are_any(monkeypatch):
    pretend(monkeypatch, *H200)
    env = PKBEnv("AllReduce", evaluator="fake")
    assert (env.config.device, env.config.language, env.config.world_size) == ("cuda", "cuda", 4)
    assert env.config.size == "published"
    task = env.reset(seed=0)[0]["task"]
    assert "4 ranks, one process each, each on its own NVIDIA H200." in task
    assert "One complete source file (cuda or triton or python)" in task
    pretend(monkeypatch)
    env = PKBEnv("AllReduce", evaluator="fake")
    assert (env.config.device, env.config.language, env.config.size) == ("cpu", "cpp", "tiny")
    assert "GPU" not in env.reset(seed=0)[0]["task"]


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    pretend(monkeypatch, *H200)
    with pytest.raises(ConfigError, match="world size 8 needs as many GPUs; this machine has 4"):
        PKBEnv("AllReduce", evaluator="fake", world_size=8)


def test_shared_gpus_are_stated(monkeypatch):
    pretend(monkeypatch, *H200[:2], apart=((0, 1),))
    env = gym.make("PKB/AllReduce-v0", evaluator="fake", world_size=8, ranks_per_gpu=4).unwrapped
    assert (env.config.ranks_per_gpu, env.config.until) == (4, "check")
    assert env.request.ranks_per_gpu == 4
    task = env.reset(seed=0)[0]["task"]
    assert "8 ranks, one process each, up to 4 on each NVIDIA H200: checked and not timed, collectives go" in task
    assert "none between GPUs 0 and 1, which" in task, "links are those of the two GPUs"
    pretend(monkeypatch, "NVIDIA Imaginary")
    text = text_on("cuda", world_size=4, ranks_per_gpu=4)
    assert "4 ranks, one process each, on GPUs (NVIDIA Imaginary), up to 4 on each: checked and not timed" in text


def test_the_race_detector_is_named_where_it_judges(monkeypatch):
    pretend(monkeypatch, *["NVIDIA H200"] * 2)
    monkeypatch.setattr(host, "processors", lambda: 64)
    text = "then time; of CUDA sources each access to memory in an emulated run at size tiny, for races."
    assert text in text_on("cuda") and "for races" not in text_on("cuda", race_check="off")
    monkeypatch.setattr(execution_environment, "no_gsan", lambda: "Triton is not installed")
    assert "for races" not in text_on("cuda", language="triton")
    monkeypatch.setattr(execution_environment, "no_gsan", lambda: "")
    text = "then time; in calls of their own the kernels run under Triton's GSan, for races."
    assert text in text_on("cuda", language="triton")


def test_links_and_multicast_are_reported(monkeypatch):
    pretend(monkeypatch, *H200)
    text = text_on("cuda")
    assert "Links: NVLink between all of them, 18 links up on each GPU;" in text
    assert "Multicast (NVLS) is available" in text
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    assert "switched off on this machine: do not use multimem instructions" in text_on("cuda")


def test_gpus_that_no_nvlink_joins_are_reported(monkeypatch):
    pretend(monkeypatch, *H200, apart=((0, 2), (1, 3)))
    assert "but none between GPUs 0 and 2, 1 and 3, which reach each other over PCIe;" in text_on("cuda")
    assert "Links: NVLink between all of them" in text_on("cuda", world_size=2)
    pretend(monkeypatch, *H200, nvlinks=0, apart=((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)))
    assert "Links: no NVLink; peers are reached over PCIe;" in text_on("cuda")


def test_gpus_of_unknown_peaks_have_a_task_too(monkeypatch):
    pretend(monkeypatch, "NVIDIA Imaginary", "NVIDIA Imaginary")
    text = text_on("cuda")
    assert "2 ranks, one process each, on GPUs (NVIDIA Imaginary), one each. Peaks: not known." in text
    assert "18 links up" in text


def test_without_a_gpu_it_says_that_sources_are_only_compiled(monkeypatch):
    pretend(monkeypatch)
    text = text_on("cuda")
    assert NO_GPU in text and "comm.device()" in text and "for sm_90a." in text
    assert NO_GPU not in text_on("cpu")
    pretend(monkeypatch, *H200)
    assert NO_GPU not in text_on("cuda")


def test_without_gpu_and_nvcc_there_is_no_such_device(monkeypatch):
    pretend(monkeypatch, nvcc=False)
    with pytest.raises(ConfigError, match="neither an NVIDIA GPU nor nvcc"):
        PKBEnv("AllReduce", evaluator="fake", device="cuda")


def test_contracts_differ_by_device(monkeypatch):
    pretend(monkeypatch, *H200)
    on_gpus, on_cpu = text_on("cuda"), text_on("cpu")
    for words in ("CUDA C++, one translation unit", "comm.cuda_stream()", "pkb/transfer_cuda.h", "(NCCL)", "Triton"):
        assert words in on_gpus and words not in on_cpu, words
    assert "(gloo)" in on_cpu and "(gloo)" not in on_gpus


def example_of(text: str, language: str) -> str:
    """The only block of code of a contract's text."""
    (example,) = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    return example


def judge_addition(evaluator, source, language):
    config = EvalConfig(device="cpu", world_size=2, size="tiny", dtype="float32", until="check", language=language)
    return evaluator.evaluate(find_problem("AllReduce"), source, config)


def test_each_barrier_of_the_example_is_needed(local_evaluator):
    (example,) = (each for each in examples("cpp", "reduce") if each.problem == "AllReduce")
    source, barrier = example.source, "comm.barrier();"
    assert source.count(barrier) == 2
    last = source.rindex(barrier)
    for without in (source.replace(barrier, "", 1), source[:last] + source[last + len(barrier) :]):
        assert judge_addition(local_evaluator, without, "cpp").failure is Failure.RACE


def test_example_in_python_keeps_the_contract(local_evaluator):
    lines = example_of(PYTHON_ON["cpu"], "python").splitlines()
    body = "\n".join("    " + line for line in ["out = tensor.clone()", *lines, "return out"])
    source = f"import torch.distributed as dist\n\ndef solution(tensor):\n{body}\n"
    feedback = judge_addition(local_evaluator, source, "python")
    assert feedback.passed, feedback.message


@pytest.mark.parametrize("contract", [CPP, CUDA, *PYTHON_ON.values()])
def test_contracts_state_when_memory_may_be_accessed(contract):
    for words in ("call has begun", "its outputs are taken", "arguments overwritten", "No barrier lies between calls"):
        assert words in " ".join(contract.split()), words
    assert "`race`" in contract


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lines_are_short(device, monkeypatch):
    pretend(monkeypatch, *H200)
    text = text_on(device)
    contracts = text[text.index("## What to write") : text.index("## Data")]
    libraries = "  - "  # one line each, of those that this machine has
    assert max(len(line) for line in contracts.splitlines() if not line.startswith(libraries)) <= 120
