"""A pool on a real cluster of three nodes: first with judges that start nothing, then with real kernels.

One file, so that one test process starts the cluster.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import gymnasium as gym
import pytest

from benchmarks import ray_faults, ray_gangs, ray_overhead, ray_scale
from benchmarks.ray_cluster import LocalCluster, placed_groups
from benchmarks.ray_sleeper import durations_of
from pkb_gym.cli import main as pkb
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.errors import ConfigError, InfrastructureError, ProblemNotFound, ServiceBusy, SizeError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.processes.host_group import HostGroup
from tests.cluster.conftest import PATIENCE_S, until
from tests.cluster.real_kernels import verdict
from tests.serve.fake_owner import TOKEN
from tests.serve.test_end_to_end import Borrowed
from tests.training.conversations import tiny_corpus
from tests.training.scripted import config, follow, run, say, submit, write_tiny_policy
from tests.training.scripted import lines as script

pytestmark = pytest.mark.skipif(
    not os.environ.get("PKB_TEST_CLUSTER"), reason="takes minutes on a real Ray cluster: run it by `make cluster`"
)

PROBLEM = find_problem("AllReduce")
ON_TWO = EvalConfig(device="cpu", world_size=2, size="tiny")
FAKE = "judge=tests.cluster.fake_judge:FakeJudge"
ADDRESS = f"ray?pool=fake&{FAKE}&checks_per_gang=2&shared_most=1&exclusive_most=1&cpus_per_rank=0.5"
ONE_GANG = "shared_most=0&exclusive_most=1&cpus_per_rank=0.5"


@pytest.fixture(scope="module")
def evaluator(ray_cluster: LocalCluster) -> Iterator[RayEvaluator]:
    """Over one pool of judges that start nothing; each test has sources of its own."""
    with RayEvaluator(ADDRESS, timeout_s=PATIENCE_S) as evaluator:
        yield evaluator


@pytest.fixture
def other_pool(ray_cluster: LocalCluster) -> Iterator[Callable[..., RayEvaluator]]:
    """Opens evaluators over pools with further settings."""
    with ExitStack() as stack:

        def opened(settings: str, **arguments: object) -> RayEvaluator:
            address = f"ray?{FAKE}&{settings}"
            return stack.enter_context(RayEvaluator(address, timeout_s=PATIENCE_S, **arguments))

        yield opened


def lines(path: Path) -> list[list[str]]:
    """What judges logged: stage, seed, "found" or "compiled", process."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_each_step_has_its_place(evaluator, tmp_path):
    """Compile, check and the rest in three processes; the artifact of the first is found by the others."""
    log, states = tmp_path / "log", []
    feedback = evaluator.evaluate(PROBLEM, f"speedup 3\nlog {log}", ON_TWO, states.append)
    assert feedback.timing.speedup_low == 3.0 and feedback.config.until == "profile"
    steps = lines(log)
    assert [step[0] for step in steps] == ["compile", "check", "profile"]
    assert [step[2] for step in steps] == ["compiled", "found", "found"]
    assert len({step[3] for step in steps}) == 3
    assert states[0] == "queued" or states[0] == "compile"


@pytest.mark.parametrize("words", ["compile_error", "output_mismatch 0.5", "deadlock", "race"])
def test_what_fails_early_takes_no_exclusive_gang(evaluator, tmp_path, words):
    before = evaluator.status().exclusive_steps
    feedback = evaluator.evaluate(PROBLEM, f"{words}\nlog {tmp_path / 'log'}", ON_TWO)
    assert feedback.failure == words.split()[0] and feedback.config.until == "profile"
    assert evaluator.status().exclusive_steps == before
    assert len(lines(tmp_path / "log")) == (1 if words == "compile_error" else 2)


@pytest.mark.parametrize(("last", "stage", "steps"), [("compile", Stage.COMPILE, 1), ("check", Stage.CHECK, 2)])
def test_an_evaluation_ends_with_the_stage_that_was_asked_for(evaluator, tmp_path, last, stage, steps):
    config = ON_TWO.model_copy(update={"until": last})
    feedback = evaluator.evaluate(PROBLEM, f"speedup 3\nlog {tmp_path / 'log'}", config)
    assert (feedback.stage, feedback.failure, feedback.config.until) == (stage, None, last)
    assert len(lines(tmp_path / "log")) == steps


def test_a_source_is_compiled_once_for_all_seeds(evaluator, tmp_path):
    log = tmp_path / "log"
    with ThreadPoolExecutor(4) as threads:
        configs = [ON_TWO.model_copy(update={"seed": seed, "until": "check"}) for seed in range(4)]
        found = list(threads.map(lambda config: evaluator.evaluate(PROBLEM, f"speedup 2\nlog {log}", config), configs))
    assert [feedback.config.seed for feedback in found] == [0, 1, 2, 3]
    assert sorted(step[1] for step in lines(log) if step[0] == "check") == ["0", "1", "2", "3"]
    assert len([step for step in lines(log) if step[0] == "compile"]) == 1


def test_equal_requests_are_evaluated_once(evaluator, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    source = f"speedup 2\nlog {log}\nwait {go}"
    before = evaluator.status().joined
    key = evaluator.submit(PROBLEM, source, ON_TWO)
    assert evaluator.submit(PROBLEM, source, ON_TWO) == key
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(evaluator.evaluate, PROBLEM, source, ON_TWO) for _ in range(2)]
        until(lambda: evaluator.status().joined == before + 3)
        go.touch()
        assert waiting[0].result(PATIENCE_S) == waiting[1].result(PATIENCE_S)
    assert evaluator.evaluate(PROBLEM, source, ON_TWO).passed, "answered from what is kept"
    assert len(lines(log)) == 3


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


def test_lone_surrogates_are_rejected_and_no_error(evaluator):
    assert evaluator.evaluate(PROBLEM, "\ud800", ON_TWO).failure is Failure.REJECTED


def test_cuda_sources_are_compiled_where_no_node_has_a_gpu(evaluator, tmp_path):
    config = ON_TWO.model_copy(update={"device": "cuda", "until": "check"})
    evaluator.evaluate(PROBLEM, f"compiled_only\nlog {tmp_path / 'log'}", config)
    assert [step[0] for step in lines(tmp_path / "log")] == ["check"], "one task, and no gang"


def test_what_nobody_waits_for_ends(evaluator, tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    source = f"speedup 2\nlog {log}\nwait {go}"
    hasty = RayEvaluator(ADDRESS, timeout_s=0.1)
    with hasty, pytest.raises(InfrastructureError, match=r"has not judged it within 0.1 s"):
        hasty.evaluate(PROBLEM, source, ON_TWO)
    until(lambda: evaluator.status().unfinished == 0)
    go.touch()
    until(lambda: all(lane.busy == 0 for lane in evaluator.status().lanes))
    assert [step[0] for step in lines(log)] in ([], ["compile"], ["compile", "check"])
    assert evaluator.status().gangs_lost == 0, "its gang is used again"


def test_a_higher_priority_goes_first_and_a_full_pool_says_so(other_pool, tmp_path):
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
    assert [step[1] for step in lines(log) if step[0] == "profile"] == ["2", "1"]


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


def test_no_room_is_said_as_such(other_pool):
    pool = other_pool("pool=crowded&shared_most=0&cpus_per_rank=40&place_s=0.5")
    with pytest.raises(InfrastructureError, match=r"no exclusive gang of 2 ranks on device 'cpu' started within 0.5 s"):
        pool.evaluate(PROBLEM, "speedup 1", ON_TWO)


def test_another_client_must_want_the_same_settings(evaluator):
    other = RayEvaluator("ray?pool=fake&exclusive_most=7")
    with other, pytest.raises(ConfigError, match=r"with other settings: exclusive_most=7 \(the pool has 1\)"):
        other.status()
    with RayEvaluator("ray?pool=fake") as other:
        assert other.evaluate(PROBLEM, "speedup 7", ON_TWO).passed, "it takes what there is"


def test_a_judge_must_exist(ray_cluster):
    other = RayEvaluator("ray?pool=strange&judge=tests.cluster.fake_judge:Nobody", timeout_s=PATIENCE_S)
    with other, pytest.raises(ConfigError, match=r"judge 'tests.cluster.fake_judge:Nobody': .* has no 'Nobody'"):
        other.evaluate(PROBLEM, "speedup 1", ON_TWO)


@pytest.mark.parametrize("make_copy", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])
def test_it_can_be_copied_while_connected(evaluator, make_copy):
    with make_copy(evaluator) as copied:
        assert copied.evaluate(PROBLEM, "speedup 1", ON_TWO).passed


def test_environments_and_vectors_of_them(evaluator):
    try:
        envs = gym.make_vec("PKB/AllReduce-v0", 3, evaluator=ADDRESS, device="cpu", world_size=2, size="tiny")
        envs.reset(seed=0)
        _, rewards, _, truncated, infos = envs.step(["speedup 4", "output_mismatch 0.5", "no source"])
        assert rewards[0] > 1 > rewards[1] > rewards[2] and not truncated.any()
        assert [feedback.failure for feedback in infos["feedback"]] == [None, "output_mismatch", "compile_error"]
        envs.close()
    finally:
        close_evaluators()


def test_doctor_looks_at_every_node(evaluator, capsys):
    assert pkb(["doctor", "--ray", "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["Ray cluster"]["detail"] == "3 nodes, 10 CPUs, 0 GPUs"
    assert "gangs on cpu" in findings and findings["versions"]["state"] == "ok"
    assert sum(name.startswith("node ") for name in findings) >= 1


def test_a_run_of_an_agent(evaluator, tmp_path, capsys):
    before = evaluator.status().finished
    options = ["--problems", "AllReduce", "--device", "cpu", "--world-size", "2", "--output", str(tmp_path)]
    assert pkb(["run", "--agent", "expert", *options, "--evaluator", "ray?pool=fake", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["complete"], summary["evaluations"], summary["failed"]) == (1, 1, {})
    assert evaluator.status().finished == before + 1


@pytest.mark.slow
def test_grpo_over_a_cluster(evaluator, tmp_path, monkeypatch):
    """Each rollout submits as it was generated; a gang that dies costs a retry, and no step."""
    policy = write_tiny_policy(tiny_corpus(), tmp_path / "policy")
    dies = f"speedup 2\ndie_once {tmp_path / 'died'}"
    follow(monkeypatch, script(submit("speedup 10"), submit(dies), say("Bye."), say("Bye.")))
    before = evaluator.status()
    schedule = start_evaluation("ray", HostGroup(), url="ray?pool=fake", deadline_s=PATIENCE_S)
    try:
        trainer = run(policy, schedule.evaluator, config(tmp_path / "out"), max_turns=3)
    finally:
        schedule.close()
    assert trainer.state.global_step >= 1
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    after = evaluator.status()
    assert after.finished - before.finished >= 2
    assert 1 <= after.retries - before.retries <= 2, "what ran beside it on the gang is taken again, too"
    assert after.infrastructure_faults == before.infrastructure_faults


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["die", "infrastructure"])
def test_a_gang_that_dies_or_fails_costs_a_retry(evaluator, tmp_path, fault):
    log = tmp_path / "log"
    before = evaluator.status()
    feedback = evaluator.evaluate(PROBLEM, f"speedup 5\nlog {log}\n{fault}_once {tmp_path / 'done'}", ON_TWO)
    assert feedback.timing.speedup_low == 5.0
    assert [step[0] for step in lines(log)] == ["compile", "check", "check", "profile"]
    after = evaluator.status()
    assert after.retries == before.retries + 1 and after.finished == before.finished + 1
    assert after.gangs_lost == before.gangs_lost + (fault == "die")


def test_a_failure_that_stays_is_said_as_such(other_pool, tmp_path):
    pool = other_pool(f"pool=unlucky&{ONE_GANG}&retries=1&deadline_s=4")
    feedback = pool.evaluate(PROBLEM, f"speedup 5\ninfrastructure {tmp_path}", ON_TWO)
    assert feedback.failure is Failure.INFRASTRUCTURE and "on fire" in feedback.message
    with pytest.raises(InfrastructureError, match="its worker was lost 2 times"):
        pool.evaluate(PROBLEM, f"speedup 5\ndie {tmp_path}", ON_TWO)
    with pytest.raises(InfrastructureError, match="no reply within 4 s"):
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
    assert [step[0] for step in lines(log)] == ["compile", "check", "profile"], "nothing was done twice"
    assert evaluator.status().submitted == before.submitted


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


# ---- real kernels ----------------------------------------------------------------------------------------------------

REAL = "ray?pool=real&shared_most=1&checks_per_gang=1&exclusive_most=1&shrink_s=600"


@pytest.fixture(scope="module")
def judged_here(local_evaluator: LocalEvaluator) -> Callable[[ray_faults.Case], Feedback]:
    return functools.cache(lambda case: local_evaluator.evaluate(PROBLEM, case.source, case.config()))


@pytest.fixture(scope="module")
def service(local_evaluator: LocalEvaluator) -> Iterator[RemoteEvaluator]:
    with (
        EvaluationService(lambda: Borrowed(local_evaluator)) as service,
        HttpServer(service, TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def real(ray_cluster: LocalCluster) -> Iterator[RayEvaluator]:
    with RayEvaluator(REAL, timeout_s=2 * PATIENCE_S) as evaluator:
        yield evaluator


@pytest.mark.slow
@pytest.mark.parametrize("case", ray_faults.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("where", ["local_evaluator", "service", "real"])
def test_all_evaluators_find_the_same(request, judged_here, case, where):
    evaluator = request.getfixturevalue(where)
    states: list[str] = []
    feedback = evaluator.evaluate(PROBLEM, case.source, case.config(), states.append)
    assert feedback.failure is case.failure, feedback.message
    assert verdict(feedback) == verdict(judged_here(case))
    assert states, "progress is reported"


@pytest.mark.slow
def test_exactly_one_right_result_whatever_dies(ray_cluster, judged_here):
    """A first client falls silent, a gang is killed, then a node with a gang on it; the second client has it all."""
    expected = {case.name: judged_here(case) for case in ray_faults.CASES}
    outcome = ray_faults.drill(ray_cluster, expected, 24, ["gang", "node"])
    assert outcome.wrong == [] and outcome.verdicts["passed"] == 4
    assert (outcome.submitted, outcome.finished, outcome.joined) == (24, 24, 24), "nothing lost, nothing twice"
    assert outcome.infrastructure_faults == 0 and outcome.retries >= 1
    assert outcome.left_over == []


# ---- benchmarks, at a tiny scale -------------------------------------------------------------------------------------


def test_overhead_is_measured(real, local_evaluator):
    found = ray_overhead.measure(local_evaluator, real, evaluations=2, side_by_side=2)
    assert found.local_p50_ms > 0 and found.ray_p50_ms > 0
    assert found.throughput_share == pytest.approx(found.ray_per_minute / found.local_per_minute)


def test_the_control_plane_is_measured(ray_cluster):
    load = ray_scale.Load(
        shared=1,
        exclusive=2,
        world_size=2,
        compilers=2,
        evaluations=30,
        seeds=2,
        waiting=8,
        scale=0.01,
        failing_share=0.3,
    )
    found = ray_scale.measure(load, "&cpus_per_rank=0.1", device="cpu")
    failing = 2 * sum(durations_of(number, 0.01, 0.3).fails_check for number in range(15))
    assert found["finished"] == 30 and found["exclusive_steps"] == 30 - failing
    assert 0 < found["utilisation"] <= 1 and found["retries"] == found["infrastructure_faults"] == 0
    assert found["pool_memory_mib"]


def test_gangs_are_measured(real, monkeypatch):
    """The arithmetic alone: what a pool of one gang has answered."""
    monkeypatch.setattr(ray_gangs, "RayEvaluator", lambda address: contextlib.nullcontext(real))
    row = ray_gangs.measure(1, 2)
    assert (row.gangs, row.evaluations) == (1, 2) and row.per_minute == pytest.approx(120 / row.wall_s)
