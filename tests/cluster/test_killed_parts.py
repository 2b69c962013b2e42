"""Every evaluation has exactly one right result, whatever dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from tests.cluster.cases import CASES
from tests.cluster.faults import (
    ADDRESS,
    agrees,
    kill_gang,
    kill_node,
    left_over,
    planned,
    submit_and_die,
    wait_for_answers,
)
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.on_cluster import PROBLEM, by_make_cluster

EVALUATIONS = 24


@by_make_cluster
def test_exactly_one_right_result_whatever_dies(ray_cluster: LocalCluster, local_evaluator: LocalEvaluator):
    """A first client is killed, then a gang, then a node with a gang on it; the second client has every verdict."""
    expected = {case.name: local_evaluator.evaluate(PROBLEM, case.source, case.config()) for case in CASES}
    plan = planned(EVALUATIONS)
    submit_and_die(ray_cluster, EVALUATIONS)
    with RayEvaluator(ADDRESS, timeout_s=3600.0) as client, ThreadPoolExecutor(EVALUATIONS) as threads:
        waiting = [threads.submit(client.evaluate, PROBLEM, case.source, case.config(seed)) for case, seed in plan]
        wait_for_answers(waiting, EVALUATIONS // 4)
        kill_gang()
        wait_for_answers(waiting, EVALUATIONS // 2)
        kill_node(ray_cluster)
        found = [future.result() for future in waiting]
        status = client.status()
    for (case, seed), feedback in zip(plan, found, strict=True):
        assert agrees(feedback, expected[case.name], seed), f"{case.name}, seed {seed}: {feedback.message}"
    assert sum(feedback.passed for feedback in found) == EVALUATIONS // len(CASES)
    assert status.submitted == status.finished == status.joined == EVALUATIONS, "nothing lost, nothing twice"
    assert status.infrastructure_faults == 0 and status.retries >= 1
    assert left_over() == []
