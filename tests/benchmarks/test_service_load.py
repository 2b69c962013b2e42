"""The benchmark of the service finds answers that are lost, doubled or mixed up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.service_load import CONFIG, PROBLEM, Job, Tally, one_at_a_time, run_jobs, tally
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.serve.ledger import Ledger
from pkb_gym.serve.results import ResultsLog
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import TOKEN, Owner, Owners, make_service


@dataclass
class NamingOwner(Owner):
    """Its feedback names the source, as an evaluator's does."""

    def evaluate(self, problem: Problem, source: str, *arguments: object, **options: object) -> Feedback:
        feedback = super().evaluate(problem, source, *arguments, **options)
        return feedback.model_copy(update={"source_sha256": source_sha256(source)})


class NamingOwners(Owners):
    def __call__(self) -> Owner:
        self.opened.append(NamingOwner())
        return self.opened[-1]


JOBS = [Job(f"speedup {1 + seed % 2}", seed) for seed in range(24)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The answers to 24 jobs of eight clients, and the file of results."""
    path = tmp_path_factory.mktemp("load") / "results.jsonl"
    with (
        AttemptFile(path, writer="pkb serve", option="--results") as file,
        make_service(NamingOwners(), ledger=Ledger(results=ResultsLog(file))) as service,
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
    owners = Owners()
    with (
        make_service(owners) as service,
        HttpServer(service, TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN) as first,
        RemoteEvaluator(server.url, TOKEN) as second,
    ):
        times = one_at_a_time(JOBS[:3], [first, second])
    assert [[job for (job, _), _ in own] for own in times] == [JOBS[:3]] * 2
    assert all(ms > 0 for own in times for _, ms in own)
    assert len(owners.asked) == 3 and PROBLEM.name == "AllReduce" and CONFIG.until == "check"
