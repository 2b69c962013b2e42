"""Two ranks with open rollouts of unequal number, which vLLM generates for: every completion belongs to its prompt."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pkb_gym.engine.support import env_vars
from tests.training.numbered_tasks import TURNS, logprob_of, tasks_named
from tests.training.vllm_server import vllm_server
from tests.waiting import PATIENCE_S

STAND_INS = Path(__file__).parents[1] / "stand_ins"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def run_ranks(mode: str, policy: Path, output: Path, url: str = "http://127.0.0.1:1") -> list[dict]:
    """The reports of two ranks."""
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(STAND_INS),
    }
    arguments = [mode, str(policy), str(output), url, str(free_port())]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.garbage", "tests.training.vllm_rank", *arguments],
            env=env_vars.with_changes(RANK=str(rank), LOCAL_RANK=str(rank), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return [json.loads((output / f"{mode}_{rank}.json").read_text()) for rank in range(2)]


def assert_own(reports: list[dict]) -> None:
    """Each of the two steps has a group of either task, and all its completions name the task of their prompt."""
    submissions: dict[int, Counter[int]] = {1: Counter(), 2: Counter()}
    for rollout in [rollout for report in reports for rollout in report["rollouts"]]:
        (task,) = tasks_named(rollout["prompt"])
        assert tasks_named(rollout["completion"]) == {task}, rollout
        assert rollout["logprobs"] == [logprob_of(task)]
        submissions[task][rollout["completion"].count("<tool_call>")] += 1
    assert submissions == {task: Counter(TURNS[task % 2] * 2) for task in (1, 2)}


@pytest.mark.slow
def test_completions_of_a_server(policy, tmp_path):
    with vllm_server(policy) as server:
        reports = run_ranks("server", policy, tmp_path, server.url)
    assert_own(reports)
    assert server.updates == 2


@pytest.mark.slow
def test_completions_of_tensor_parallel_ranks(policy, tmp_path):
    reports = run_ranks("tensor_parallel", policy, tmp_path)
    assert_own(reports)
    assert reports[0]["requests"] == reports[1]["requests"], "ranks that share a model have to ask it for the same"
