"""The core of evaluations on Ray, on two nodes: verdicts, a killed gang, a lost node, environments, trainers.

`make test` compares verdicts; `make cluster` runs all tests on a cluster.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import psutil
import pytest

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.support import env_vars
from pkb_gym.envs.evaluator_registry import close_evaluators
from tests.cluster.cases import CASES
from tests.cluster.local_cluster import LocalCluster, placed_groups
from tests.cluster.on_cluster import FAKE_POOL, NODE_CPUS, ON_TWO, PROBLEM, by_make_cluster, logged
from tests.cluster.trainer import STEPS
from tests.cluster.verdicts import verdict
from tests.training.conversations import tiny_corpus
from tests.training.scripted import row, write_tiny_policy
from tests.waiting import PATIENCE_S, until

JUDGED = [case for case in CASES if case.name in ("right", "wrong", "crashing")]


def test_verdicts_are_the_local_evaluator_s(ray_cluster: LocalCluster, local_evaluator: LocalEvaluator):
    """One gang checks and times."""
    with RayEvaluator("ray?pool=real&shared_most=0&exclusive_most=1&cpus_per_rank=0.6") as real:
        for case in JUDGED:
            config = case.config().model_copy(update={"until": "check"})
            found = real.evaluate(PROBLEM, case.source, config)
            assert found.failure is case.failure, found.message
            assert verdict(found) == verdict(local_evaluator.evaluate(PROBLEM, case.source, config))
        status = real.status()
    assert (status.finished, status.infrastructure_faults) == (len(JUDGED), 0)


@by_make_cluster
def test_a_gang_that_is_killed_costs_a_retry(evaluator: RayEvaluator, tmp_path: Path):
    log, go = tmp_path / "log", tmp_path / "go"
    before = evaluator.status()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(evaluator.evaluate, PROBLEM, f"speedup 5\nlog {log}\nwait {go}", ON_TWO)
        until(lambda: [line[0] for line in logged(log)] == ["compile", "check"])
        psutil.Process(int(logged(log)[1][3])).kill()
        until(lambda: len(logged(log)) == 3, "the check is not taken again")
        go.touch()
        assert waiting.result(PATIENCE_S).timing.speedup_low == 5.0
    assert [line[0] for line in logged(log)] == ["compile", "check", "check", "profile"]
    assert len({line[3] for line in logged(log)}) == 4, "the second check ran in another process"
    after = evaluator.status()
    assert (after.submitted, after.finished) == (before.submitted + 1, before.finished + 1)
    assert (after.retries, after.gangs_lost) == (before.retries + 1, before.gangs_lost + 1)


@by_make_cluster
def test_a_node_that_is_lost_costs_a_retry(evaluator: RayEvaluator, ray_cluster: LocalCluster, tmp_path: Path):
    """The node of all gangs dies while two of them judge."""
    log, go = tmp_path / "log", tmp_path / "go"
    before = evaluator.status()
    with ThreadPoolExecutor(2) as threads:
        sources = [f"speedup {speedup}\nlog {log}\nwait {go}" for speedup in (5, 6)]
        waiting = [threads.submit(evaluator.evaluate, PROBLEM, source, ON_TWO) for source in sources]
        until(lambda: "check" in [line[0] for line in logged(log)], "no gang runs")
        ray_cluster.kill_node(node_of_gangs(ray_cluster))
        ray_cluster.add_node(cpus=NODE_CPUS)
        go.touch()
        assert [each.result(PATIENCE_S).timing.speedup_low for each in waiting] == [5.0, 6.0]
    after = evaluator.status()
    assert after.retries > before.retries and after.infrastructure_faults == before.infrastructure_faults
    assert (after.submitted - before.submitted, after.finished - before.finished) == (2, 2)


@by_make_cluster
def test_environments_and_vectors_of_them(evaluator: RayEvaluator):
    try:
        envs = gym.make_vec("PKB/AllReduce-v0", 3, evaluator=FAKE_POOL, device="cpu", world_size=2, size="tiny")
        envs.reset(seed=0)
        _, rewards, _, truncated, infos = envs.step(["speedup 4", "output_mismatch 0.5", "no source"])
        assert rewards[0] > 1 > rewards[1] > rewards[2] and not truncated.any()
        assert [feedback.failure for feedback in infos["feedback"]] == [None, "output_mismatch", "compile_error"]
        envs.close()
    finally:
        close_evaluators()


@by_make_cluster
@pytest.mark.timeout(600)
def test_two_trainers_lose_a_node(evaluator: RayEvaluator, ray_cluster: LocalCluster, tmp_path: Path):
    """`grpo.py` on two ranks, each of which submits by itself; the node of all gangs dies in the first step."""
    policy = write_tiny_policy(tiny_corpus(), tmp_path / "policy")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row(seed=seed, part="train")) + "\n" for seed in range(STEPS)))
    output, go = tmp_path / "output", tmp_path / "go"
    before = evaluator.status()
    logs = [tmp_path / f"rank_{rank}.log" for rank in range(2)]
    trainers = started_trainers(ray_cluster, [policy, prompts, output, FAKE_POOL, go], logs)
    try:
        until(lambda: all_submitted(evaluator, before.submitted + 4, trainers, logs), "not every rank submits")
        until(lambda: any(lane.busy for lane in evaluator.status().lanes), "no gang runs")
        ray_cluster.kill_node(node_of_gangs(ray_cluster))
        ray_cluster.add_node(cpus=NODE_CPUS)
        go.touch()
        ended = [trainer.wait(timeout=2 * PATIENCE_S) for trainer in trainers]
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
    assert ended == [0, 0], "\n".join(log.read_text() for log in logs)
    state = json.loads((output / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert state["global_step"] == STEPS == len(losses) and all(map(math.isfinite, losses))
    lines = [json.loads(line) for line in (output / "rollouts.jsonl").read_text().splitlines()]
    judged = Counter((line["step"], line["speedup"]) for line in lines if line["source"] is not None)
    assert sorted(speedup for _, speedup in judged) == [1, 2, 3, 4, 11, 12, 13, 14], "one record of each submission"
    assert set(judged.values()) == {1}
    after = evaluator.status()
    assert after.retries > before.retries and after.infrastructure_faults == before.infrastructure_faults
    assert (after.submitted - before.submitted, after.finished - before.finished) == (8, 8)


def started_trainers(
    cluster: LocalCluster, arguments: Sequence[object], logs: Sequence[Path]
) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    common |= {"ACCELERATE_USE_CPU": "true", "RAY_ADDRESS": cluster.address}
    started = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            command = [sys.executable, "-m", "tests.garbage", "tests.cluster.trainer", *map(str, arguments)]
            environment = env_vars.with_changes(RANK=str(rank), LOCAL_RANK=str(rank), **common)
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
    return started


def all_submitted(
    evaluator: RayEvaluator, number: int, trainers: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]
) -> bool:
    """Whether so many evaluations were submitted; a trainer that ends before fails the test."""
    for trainer, log in zip(trainers, logs, strict=True):
        assert trainer.poll() is None, log.read_text()
    return evaluator.status().submitted >= number


def node_of_gangs(cluster: LocalCluster) -> object:
    """The node that all gangs are on."""
    (place,) = set(placed_groups("fake").values())
    (found,) = [node for node in cluster.nodes if node.node_id == place]
    return found
