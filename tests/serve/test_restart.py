"""Accepted evaluations outlive the service, and are counted once, whenever it was killed."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from pkb_gym.engine.errors import EvaluationNotFound, InfrastructureError
from pkb_gym.engine.evaluators.queue.store import EvaluationStore
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.serve.clients import Client
from pkb_gym.serve.recorder import Recorder
from pkb_gym.serve.service import MAX_BEGINS
from tests.serve.fake_owner import ON_TWO, Owners, answer, ask, make_service
from tests.waiting import until

REQUEST = EvaluationRequest(problem="AllReduce", source="speedup 3", config=ON_TWO)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


@pytest.fixture
def start(path, tmp_path):
    """Starts services on the same files, as a restarted process does."""
    stack = []

    def start(owners: Owners, **arguments):
        journal = EvaluationStore(path, 1024)
        file = AttemptFile(tmp_path / "results.jsonl", writer="pkb serve", option="--results")
        context = make_service(owners, recorder=Recorder(journal, file), **arguments)
        service = context.__enter__()
        stack.append((context, file, journal))
        service.recover()
        return service

    def end():
        context, file, journal = stack.pop()
        context.__exit__(None, None, None)
        file.close(), journal.close()

    start.end = end
    yield start
    while stack:
        end()


def sources(tmp_path):
    return [attempt.source for attempt in read_attempts(tmp_path / "results.jsonl")]


def test_what_was_accepted_goes_on_after_a_restart(start, owners, tmp_path):
    service = start(owners, max_begun=1)
    done = ask(service, "speedup 1")
    feedback = answer(service, done)
    running, queued = ask(service, "run"), ask(service, "speedup 2")
    until(lambda: service.status().running == 1)
    service.close()
    with pytest.raises(InfrastructureError, match="goes on with this evaluation when it is started again"):
        answer(service, queued)
    start.end()

    again = Owners()
    service = start(again, max_begun=1)
    assert answer(service, done) == feedback, "answered from the journal, under its id"
    again.opened[0].goes_on.set()
    assert answer(service, running).passed and answer(service, queued).passed
    assert again.requested == ["speedup 2", "speedup 2"], "the one that stands for run, and the queued one"
    # A result is written beside the next evaluation, which may overtake it.
    assert sorted(sources(tmp_path)) == ["run", "speedup 1", "speedup 2"], "each once"
    assert ask(service, "speedup 1") == done, "an equal request is answered from the journal too"
    start.end()
    assert start(Owners()).find(running).answer.passed
    assert sorted(sources(tmp_path)) == ["run", "speedup 1", "speedup 2"]


def test_clients_find_their_evaluations_again(start, owners):
    first, second = Client("first"), Client("second")
    service = start(owners, max_begun=1)
    ask(service, "run")
    shared = service.submit(REQUEST, first).id
    service.submit(REQUEST, second)
    unwanted = service.submit(REQUEST.model_copy(update={"source": "speedup 4"}), first).id
    service.give_up(unwanted, first)
    service.give_up(shared, first)
    start.end()
    service = start(Owners())
    assert service.find(shared, second).is_wanted
    with pytest.raises(EvaluationNotFound):
        service.find(unwanted, first)


def test_a_kill_between_the_answer_and_the_results(start, owners, path, tmp_path):
    """The answer is in the journal and not in the results, or in both and not marked."""
    service = start(owners)
    evaluations = [ask(service, f"speedup {number}") for number in (1, 2)]
    for each in evaluations:
        answer(service, each)
    start.end()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE evaluations SET kept = 0")
    results = tmp_path / "results.jsonl"
    kept, _ = sorted(results.read_text().splitlines(), key=lambda line: "speedup 2" in line)
    results.write_text(f"{kept}\n")

    start(Owners())
    assert results.read_text().splitlines()[0] == kept
    assert sorted(sources(tmp_path)) == ["speedup 1", "speedup 2"], "the one that was lost is added, the other not"
    start.end()
    with EvaluationStore(path, 8) as journal:
        assert [stored.kept for stored in journal.stored()] == [True, True]


def test_an_evaluation_that_ends_the_service_is_given_up(start, path, owners):
    with EvaluationStore(path, 8) as journal:
        journal.accepted("deadly", "default", REQUEST)
        for _ in range(MAX_BEGINS):
            journal.begun("deadly")
    feedback = answer(start(owners), "deadly")
    assert feedback.failure is Failure.INFRASTRUCTURE and f"the service ended {MAX_BEGINS} times" in feedback.message
    assert not owners.requested


def test_what_makes_no_sense_any_more_is_given_up(start, path, owners, caplog):
    with EvaluationStore(path, 8) as journal:
        journal.accepted("one", "default", REQUEST.model_copy(update={"problem": "Removed"}))
    service = start(owners)
    with pytest.raises(EvaluationNotFound):
        service.find("one")
    assert "no problem 'Removed'" in caplog.text
    start.end()
    caplog.clear()
    start(Owners())
    assert not caplog.text, "and not read again"


def test_a_request_that_cannot_be_recorded_is_refused(path, owners, monkeypatch):
    with EvaluationStore(path, 8) as journal, make_service(owners, recorder=Recorder(journal)) as service:
        answer(service, ask(service, "speedup 1"))
        commit = EvaluationStore._commit

        def fails(store, connection, batch):
            with monkeypatch.context() as patch:
                patch.setattr(EvaluationStore, "_commit", commit)
                for job in batch:
                    job.work = _disk_is_full
                commit(store, connection, batch)

        monkeypatch.setattr(EvaluationStore, "_commit", fails)
        with pytest.raises(InfrastructureError, match="cannot be written: the disk is full"):
            ask(service, "compile")
        monkeypatch.undo()
        owners.opened[0].goes_on.set()
        until(lambda: not service.status().compiling)
        journal.close()
        with pytest.raises(InfrastructureError, match="cannot be written: it is closed"):
            ask(service, "speedup 2")
        assert service.status().queued == 0 and owners.requested == ["speedup 1"]


def _disk_is_full(connection):
    raise sqlite3.OperationalError("the disk is full")
