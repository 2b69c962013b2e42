"""Queues of a pool: priorities, limits, pools that grow and shrink, and evaluations that nobody waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.errors import InfrastructureError, ServiceBusy
from tests.cluster.on_cluster import FAKE_POOL, ON_TWO, ONE_GANG, PROBLEM, by_make_cluster, logged
from tests.waiting import PATIENCE_S, until

pytestmark = by_make_cluster


def test_what_nobody_waits_for_ends(evaluator, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    source = f"speedup 2\nlog {log}\nwait {go}"
    before = evaluator.status().gangs_lost
    hasty = RayEvaluator(FAKE_POOL, timeout_s=0.1)
    with hasty, pytest.raises(InfrastructureError, match=r"has not judged it within 0.1 s"):
        hasty.evaluate(PROBLEM, source, ON_TWO)
    until(lambda: evaluator.status().unfinished == 0)
    go.touch()
    until(lambda: all(lane.busy == 0 for lane in evaluator.status().lanes))
    assert [step[0] for step in logged(log)] in ([], ["compile"], ["compile", "check"])
    assert evaluator.status().gangs_lost == before, "its gang is used again"


def test_a_higher_priority_goes_first_and_a_full_pool_refuses(other_pool, tmp_path):
    low = other_pool(f"pool=order&{ONE_GANG}&most_waiting=3")
    high = other_pool(f"pool=order&{ONE_GANG}&most_waiting=3", priority=1)
    log, go = tmp_path / "log", tmp_path / "go"
    config = [ON_TWO.model_copy(update={"seed": seed}) for seed in range(3)]
    low.submit(PROBLEM, f"speedup 1\nwait {go}", config[0])
    until(lambda: any(lane.busy for lane in low.status().lanes))
    low.submit(PROBLEM, f"speedup 2\nlog {log}", config[1])
    until(lambda: sum(lane.waiting for lane in low.status().lanes) == 1)
    with ThreadPoolExecutor(2) as threads:
        urgent = threads.submit(high.evaluate, PROBLEM, f"speedup 2\nlog {log}", config[2])
        until(lambda: sum(lane.waiting for lane in low.status().lanes) == 2)
        with pytest.raises(ServiceBusy, match="3 evaluations wait or run already"):
            low.submit(PROBLEM, "speedup 9", ON_TWO)
        patient = threads.submit(low.evaluate, PROBLEM, "speedup 9", ON_TWO)
        until(lambda: low.status().refused >= 2)
        go.touch()
        assert urgent.result(PATIENCE_S).passed and patient.result(PATIENCE_S).passed
    assert low.evaluate(PROBLEM, f"speedup 2\nlog {log}", config[1]).passed
    assert [step[1] for step in logged(log) if step[0] == "profile"] == ["2", "1"]


def test_a_pool_grows_to_its_limit_and_shrinks(other_pool, tmp_path):
    pool = other_pool("pool=growing&shared_most=0&exclusive_most=2&shrink_s=0.5&cpus_per_rank=0.25")
    go = tmp_path / "go"
    for seed in range(4):
        pool.submit(PROBLEM, f"speedup 1\nwait {go}", ON_TWO.model_copy(update={"seed": seed}))

    def lane():
        return next(iter(pool.status().lanes), None)

    until(lambda: lane() is not None and (lane().gangs, lane().busy, lane().waiting) == (2, 2, 2))
    assert lane().starting == 0 and lane().most == 2
    go.touch()
    until(lambda: pool.status().finished == 4 and lane().gangs == 0)
    assert pool.status().gangs_lost == 0


def test_a_lack_of_room_is_reported_as_such(other_pool):
    pool = other_pool("pool=crowded&shared_most=0&cpus_per_rank=40&place_s=0.5")
    with pytest.raises(InfrastructureError, match=r"no exclusive gang of 2 ranks on device 'cpu' started within 0.5 s"):
        pool.evaluate(PROBLEM, "speedup 1", ON_TWO)
