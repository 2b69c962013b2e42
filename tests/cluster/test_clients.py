"""Clients of a pool: refusals, settings, copies, commands, and the end of a pool with its last client."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest

from pkb_gym.cli import main as pkb
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.errors import ConfigError, ProblemNotFound, SizeError
from tests.cluster.local_cluster import placed_groups
from tests.cluster.on_cluster import FAKE, NODE_CPUS, ON_TWO, ONE_GANG, PROBLEM, by_make_cluster
from tests.waiting import PATIENCE_S, until

pytestmark = by_make_cluster


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"size": "huge"}, SizeError, "no size 'huge'"),
        ({"language": "cuda"}, ConfigError, "does not run on device"),
    ],
)
def test_refusals_of_the_pool_are_raised_here(evaluator, changes, error, words):
    with pytest.raises(error, match=words):
        evaluator.evaluate(PROBLEM, "speedup 1", ON_TWO.model_copy(update=changes))


def test_a_problem_that_the_cluster_lacks(evaluator):
    with pytest.raises(ProblemNotFound, match="no problem 'Renamed'"):
        evaluator.evaluate(dataclasses.replace(PROBLEM, name="Renamed"), "speedup 1", ON_TWO)


def test_another_client_must_want_the_same_settings(evaluator):
    other = RayEvaluator("ray?pool=fake&exclusive_most=7")
    with other, pytest.raises(ConfigError, match=r"with other settings: exclusive_most=7 \(the pool has 1\)"):
        other.status()
    with RayEvaluator("ray?pool=fake") as other:
        assert other.evaluate(PROBLEM, "speedup 7", ON_TWO).passed, "it takes what there is"


def test_an_evaluator_must_exist(ray_cluster):
    other = RayEvaluator("ray?pool=strange&evaluator=tests.cluster.fake_pool_evaluator:Nobody", timeout_s=PATIENCE_S)
    with (
        other,
        pytest.raises(ConfigError, match=r"evaluator .*:Nobody': .* has no 'Nobody'"),
    ):
        other.evaluate(PROBLEM, "speedup 1", ON_TWO)


@pytest.mark.parametrize("make_copy", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_it_can_be_copied_while_connected(evaluator, make_copy):
    with make_copy(evaluator) as copied:
        assert copied.evaluate(PROBLEM, "speedup 1", ON_TWO).passed


def test_doctor_looks_at_every_node(evaluator, capsys):
    assert pkb(["doctor", "--ray", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["Ray cluster"]["detail"] == f"2 nodes, {1 + NODE_CPUS} CPUs, 0 GPUs"
    assert "gangs on cpu" in findings and findings["versions"]["state"] == "ok"
    assert sum(name.startswith("node ") for name in findings) >= 1


def test_a_run_of_an_agent(evaluator, tmp_path, capsys):
    before = evaluator.status().finished
    options = ["--problems", "AllReduce", "--device", "cpu", "--world-size", "2", "--output", str(tmp_path)]
    assert pkb(["run", "--agent", "expert", *options, "--evaluator", "ray?pool=fake", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["complete"], summary["evaluations"], summary["failed"]) == (1, 1, {})
    assert evaluator.status().finished == before + 1


def test_the_last_client_ends_the_pool(ray_cluster, tmp_path):
    import ray

    first, second = (RayEvaluator(f"ray?pool=closing&{FAKE}&{ONE_GANG}") for _ in range(2))
    assert first.evaluate(PROBLEM, "speedup 1", ON_TWO).passed
    second.submit(PROBLEM, f"speedup 1\nwait {tmp_path / 'never'}", ON_TWO)
    first.close()
    assert ray.get_actor("pkb-closing", namespace="pkb") is not None
    second.close()
    second.close()
    with pytest.raises(ValueError, match="pkb-closing"):
        ray.get_actor("pkb-closing", namespace="pkb")
    until(lambda: not placed_groups("closing"))
