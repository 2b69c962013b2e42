"""Faults of a cluster: gangs, pools and clients that end, and failures that stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Failure
from tests.cluster.on_cluster import ON_TWO, ONE_GANG, PROBLEM, by_make_cluster, logged
from tests.waiting import PATIENCE_S, until

pytestmark = by_make_cluster


@pytest.mark.parametrize("fault", ["die", "infrastructure"])
def test_a_gang_that_dies_or_fails_costs_a_retry(evaluator, tmp_path, fault):
    log = tmp_path / "log"
    before = evaluator.status()
    feedback = evaluator.evaluate(PROBLEM, f"speedup 5\nlog {log}\n{fault}_once {tmp_path / 'done'}", ON_TWO)
    assert feedback.timing.speedup_low == 5.0
    assert [step[0] for step in logged(log)] == ["compile", "check", "check", "profile"]
    after = evaluator.status()
    assert after.retries == before.retries + 1 and after.finished == before.finished + 1
    assert after.gangs_lost == before.gangs_lost + (fault == "die")


def test_a_permanent_failure_is_reported_as_such(other_pool, tmp_path):
    pool = other_pool(f"pool=unlucky&{ONE_GANG}&retries=1&deadline_s=8")
    feedback = pool.evaluate(PROBLEM, f"speedup 5\ninfrastructure {tmp_path}", ON_TWO)
    assert feedback.failure is Failure.INFRASTRUCTURE and "on fire" in feedback.message
    with pytest.raises(InfrastructureError, match="its worker was lost 2 times"):
        pool.evaluate(PROBLEM, f"speedup 5\ndie {tmp_path}", ON_TWO)
    with pytest.raises(InfrastructureError, match="no reply within 8 s"):
        pool.evaluate(PROBLEM, f"speedup 5\nhang {tmp_path / 'never'}", ON_TWO)
    assert pool.evaluate(PROBLEM, "speedup 5", ON_TWO).passed and pool.status().infrastructure_faults == 3


def test_a_pool_that_is_killed_is_asked_again(other_pool, tmp_path):
    import ray

    pool, go = other_pool(f"pool=mortal&{ONE_GANG}"), tmp_path / "go"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.evaluate, PROBLEM, f"speedup 6\nwait {go}", ON_TWO)
        until(lambda: any(lane.busy for lane in pool.status().lanes))
        ray.kill(ray.get_actor("pkb-mortal", namespace="pkb"), no_restart=False)
        go.touch()
        assert waiting.result(PATIENCE_S).timing.speedup_low == 6.0
    until(lambda: pool.status().uptime_s < PATIENCE_S)


CLIENT = """
import sys
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
evaluator = RayEvaluator(sys.argv[1])
print("begun", evaluator.submit(find_problem("AllReduce"), sys.argv[2], EvalConfig.model_validate_json(sys.argv[3])))
sys.stdout.flush()
evaluator.evaluate(find_problem("AllReduce"), sys.argv[2], EvalConfig.model_validate_json(sys.argv[3]))
"""


def test_a_client_from_outside_that_is_cut_off_and_joins_again(evaluator, ray_cluster, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    source = f"speedup 8\nlog {log}\nwait {go}"
    address = f"{ray_cluster.client_url}?pool=fake"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, source, ON_TWO.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    with client:
        assert client.stdout.readline().startswith("begun ")
        until(lambda: any(lane.busy for lane in evaluator.status().lanes))
        client.send_signal(signal.SIGKILL)
    before = evaluator.status()
    with ThreadPoolExecutor(1) as threads:
        again = threads.submit(evaluator.evaluate, PROBLEM, source, ON_TWO)
        until(lambda: evaluator.status().joined > before.joined)
        go.touch()
        assert again.result(PATIENCE_S).timing.speedup_low == 8.0
    assert [step[0] for step in logged(log)] == ["compile", "check", "profile"], "nothing was done twice"
    assert evaluator.status().submitted == before.submitted
