"""The benchmark of the service finds answers that are lost, doubled or mixed up."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.common import header
from benchmarks.service_load import (
    CONFIG,
    PROBLEM,
    Job,
    Measurement,
    Round,
    Tally,
    earlier_rounds,
    fill,
    one_at_a_time,
    run_jobs,
    summary,
    tally,
)
from benchmarks.tests.scripted_evaluator import ScriptedEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.serve.recorder import Recorder
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService

TOKEN = "a token of these tests"
JOBS = [Job(f"speedup {1 + seed % 2}", seed) for seed in range(24)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The answers to 24 jobs of eight clients, and the file of results."""
    path = tmp_path_factory.mktemp("load") / "results.jsonl"
    with (
        AttemptFile(path, writer="pkb serve", option="--results") as file,
        EvaluationService(ScriptedEvaluator, recorder=Recorder(results=file)) as service,
        HttpServer(service, TOKEN) as server,
    ):
        clients = [RemoteEvaluator(server.url, TOKEN) for _ in range(8)]
        answers, per_s = run_jobs(JOBS, clients)
        assert per_s > 0
        for client in clients:
            client.close()
    return answers, read_attempts(path)


def test_every_job_is_answered_once(found):
    assert tally(JOBS, *found) == Tally(jobs=24, lost=0, doubled=0, mixed_up=0, failed=0)


def test_what_is_wrong_is_counted(found):
    answers, kept = found
    assert tally(JOBS, answers[1:], kept).lost == 1
    assert tally(JOBS, answers, kept[1:]).lost == 1
    assert tally(JOBS, answers, [*kept, kept[0]]).doubled == 1
    swapped = [(answers[0][0], answers[1][1]), (answers[1][0], answers[0][1]), *answers[2:]]
    assert tally(JOBS, swapped, kept).mixed_up == 2


def test_jobs_one_at_a_time_go_to_each_evaluator():
    judge = ScriptedEvaluator()
    with (
        EvaluationService(lambda: judge) as service,
        HttpServer(service, TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN) as first,
        RemoteEvaluator(server.url, TOKEN) as second,
    ):
        times = one_at_a_time(JOBS[:3], [first, second])
    assert [[job for (job, _), _ in own] for own in times] == [JOBS[:3]] * 2
    assert all(ms > 0 for own in times for _, ms in own)
    assert len(judge.requested) == 3 and PROBLEM.name == "AllReduce" and CONFIG.until == "check"


NOTHING_WRONG = Tally(jobs=100, lost=0, doubled=0, mixed_up=0, failed=0)


def a_round(service_per_s: float = 9.0, local_per_s: float = 10.0, added_ms: float = 4.0) -> Round:
    local_ms = [100.0, 110.0, 130.0]
    service_ms = [ms + added_ms for ms in local_ms]
    return Round(local_ms, service_ms, [local_per_s - 1, local_per_s + 1], service_per_s, NOTHING_WRONG, 0, 30.0)


def test_a_round_counts_its_own_jobs(tmp_path):
    path = tmp_path / "results.jsonl"
    with (
        AttemptFile(path, writer="pkb serve", option="--results") as file,
        EvaluationService(ScriptedEvaluator, recorder=Recorder(results=file)) as service,
        HttpServer(service, TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN) as first,
        RemoteEvaluator(server.url, TOKEN) as second,
        EvaluationService(ScriptedEvaluator) as without_results,
        HttpServer(without_results, TOKEN) as local_server,
        RemoteEvaluator(local_server.url, TOKEN) as local,
    ):
        measurement = Measurement(["speedup 1", "speedup 2"], 0, local, [first, second], path)
        measurement.warm_up()
        rounds = [measurement.round(jobs=8, latencies=3, local=4) for _ in range(2)]
    assert [each.tally for each in rounds] == [Tally(jobs=11, lost=0, doubled=0, mixed_up=0, failed=0)] * 2
    assert [(len(each.local_ms), len(each.service_ms), each.faults) for each in rounds] == [(3, 3, 0)] * 2
    assert len(read_attempts(path)) == 4 + 22, "the jobs of the local evaluator went elsewhere"


def test_the_summary_has_medians_of_rounds_and_sums_of_jobs():
    found = summary(200, [a_round(9.0, 10.0), a_round(4.0, 5.0), a_round(9.0, 9.0)])
    assert found["share_of_local"] == 0.9 and found["shares"] == [0.9, 0.8, 1.0]
    assert found["added_p50_ms"] == 4.0 and found["jobs"] == 300 and found["lost"] == 0


def test_rounds_end_with_the_budget():
    kept: list[int] = []
    rounds = [a_round()]
    fill(rounds, 3, 60.0, a_round, lambda found: kept.append(len(found)))
    assert len(rounds) == 3 and kept == [2, 3], "a round of an earlier run counts"
    fill(rounds, 5, -1.0, a_round, lambda _: None)
    assert len(rounds) == 3, "no time was left"


def test_rounds_of_another_commit_are_refused(tmp_path):
    path = tmp_path / "service_load.json"
    assert earlier_rounds(path, "abc", 200) == []
    path.write_text(json.dumps(header() | {"commit": "abc"} | summary(200, [a_round()])))
    (found,) = earlier_rounds(path, "abc", 200)
    assert asdict(found) == asdict(a_round())
    for commit, clients in (("def", 200), ("abc", 100)):
        with pytest.raises(SystemExit, match="leave out --resume"):
            earlier_rounds(path, commit, clients)
