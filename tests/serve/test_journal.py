"""Accepted evaluations outlive the service, and are counted once, whenever it was killed."""

from __future__ import annotations

import json

import pytest

from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.serve.clients import Client
from pkb_gym.serve.journal import Begun, EvaluationJournal, Finished, Kept, accepted_now
from pkb_gym.serve.ledger import Ledger
from pkb_gym.serve.results import ResultsLog
from pkb_gym.serve.service import MAX_BEGINS
from tests.serve.fake_owner import ON_TWO, Owners, answer, ask, make_service, until

REQUEST = EvaluationRequest(problem="AllReduce", source="speedup 3", config=ON_TWO)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def start(path, tmp_path):
    """Starts services on the same files, as a restarted process does."""
    stack = []

    def start(owners: Owners, **arguments):
        journal = EvaluationJournal(path, 1024)
        file = AttemptFile(tmp_path / "results.jsonl", writer="pkb serve", option="--results")
        context = make_service(owners, ledger=Ledger(journal, ResultsLog(file)), **arguments)
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


def kinds(path):
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


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
    assert sources(tmp_path) == ["speedup 1", "run", "speedup 2"], "each once"
    assert ask(service, "speedup 1") == done, "an equal request is answered from the journal too"
    start.end()
    assert start(Owners()).find(running).answer.result(0).passed
    assert sources(tmp_path) == ["speedup 1", "run", "speedup 2"]


def test_clients_find_their_evaluations_again(start, owners):
    first, second = Client("first"), Client("second")
    service = start(owners, max_begun=1)
    ask(service, "run")
    shared = service.submit(REQUEST, first)
    service.submit(REQUEST, second)
    unwanted = service.submit(REQUEST.model_copy(update={"source": "speedup 4"}), first)
    service.give_up(unwanted, first)
    service.give_up(shared, first)
    start.end()
    service = start(Owners())
    assert service.find(shared, second).is_wanted
    with pytest.raises(EvaluationNotFound):
        service.find(unwanted, first)


def test_a_closed_journal_has_what_was_written_and_takes_no_more(path):
    journal = EvaluationJournal(path, 8)
    number = journal.append(accepted_now("one", "default", REQUEST))
    journal.close()
    journal.sync(number)
    with pytest.raises(InfrastructureError, match="is closed"):
        journal.append(accepted_now("two", "default", REQUEST))
    with EvaluationJournal(path, 8) as again:
        assert [job.accepted.id for job in again.recovered()] == ["one"]


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_a_torn_last_line_is_cut_off(path, cut):
    with EvaluationJournal(path, 8) as journal:
        for name in ("one", "two"):
            journal.append(accepted_now(name, "default", REQUEST))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with EvaluationJournal(path, 8) as journal:
        assert [job.accepted.id for job in journal.recovered()] == ["one"]
        journal.append(accepted_now("three", "default", REQUEST))
        assert [job.accepted.id for job in journal.recovered()] == ["one", "three"]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "no JSON",
        '{"kind": "accepted", "id": "x"}',
        '{"kind": 3, "id": "x"}',
        '{"kind": "x", "id": 3}',
        '{"kind": "x", "id": "x"}',
    ],
)
def test_something_else_is_no_journal(path, line):
    path.write_text(f"{line}\n")
    words = r"line 1, is no entry of a journal.*--journal names another"
    with pytest.raises(ConfigError, match=words), EvaluationJournal(path, 8) as journal:
        journal.recovered()
    assert path.read_text() == f"{line}\n", "and is left as it is"


def test_one_service_writes_a_journal(path):
    with EvaluationJournal(path, 8):
        assert path.stat().st_mode & 0o777 == 0o600, "it holds the sources of all clients"
        with pytest.raises(ConfigError, match="is being written by another `pkb serve`"):
            EvaluationJournal(path, 8)


def test_a_journal_grows_no_further_than_it_must(path, owners):
    with make_service(owners) as service:
        feedback = answer(service, ask(service, "speedup 3"))
    with EvaluationJournal(path, max_answers=2, growth_bytes=20_000) as journal:
        journal.append(accepted_now("open", "default", REQUEST))
        for number in range(40):
            journal.append(accepted_now(str(number), "default", REQUEST))
            journal.append(Kept(id=str(number)))
            journal.sync(journal.append(Finished(id=str(number), feedback=feedback)))
        assert path.stat().st_size < 60_000
        with pytest.raises(ConfigError, match="another `pkb serve`"):
            EvaluationJournal(path, 8)  # the lock is that of the new file
    with EvaluationJournal(path, max_answers=2) as journal:
        assert [job.accepted.id for job in journal.recovered()] == ["38", "39", "open"]
        assert [job.feedback == feedback and job.kept for job in journal.recovered()] == [True, True, False]


def test_lone_surrogates_are_kept(path):
    with EvaluationJournal(path, 8) as journal:
        journal.append(accepted_now("one", "default", REQUEST.model_copy(update={"source": "\ud800"})))
    with EvaluationJournal(path, 8) as journal:
        assert journal.recovered()[0].accepted.request.source == "\ud800"


def test_a_kill_between_the_answer_and_the_results(start, owners, path, tmp_path):
    """The answer is in the journal and not in the results, or in both and not marked."""
    service = start(owners)
    evaluations = [ask(service, f"speedup {number}") for number in (1, 2)]
    for each in evaluations:
        answer(service, each)
    start.end()
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "kept"]
    path.write_text("".join(f"{line}\n" for line in lines))
    results = tmp_path / "results.jsonl"
    kept, _ = sorted(results.read_text().splitlines(), key=lambda line: "speedup 2" in line)
    results.write_text(f"{kept}\n")

    start(Owners())
    assert results.read_text().splitlines()[0] == kept
    assert sorted(sources(tmp_path)) == ["speedup 1", "speedup 2"], "the one that was lost is added, the other not"
    assert kinds(path).count("kept") == 2


def test_an_evaluation_that_ends_the_service_is_given_up(start, path, owners):
    with EvaluationJournal(path, 8) as journal:
        journal.append(accepted_now("deadly", "default", REQUEST))
        for _ in range(MAX_BEGINS):
            journal.append(Begun(id="deadly"))
    feedback = answer(start(owners), "deadly")
    assert feedback.failure is Failure.INFRASTRUCTURE and f"the service ended {MAX_BEGINS} times" in feedback.message
    assert not owners.requested


def test_what_makes_no_sense_any_more_is_given_up(start, path, owners, caplog):
    with EvaluationJournal(path, 8) as journal:
        journal.append(accepted_now("one", "default", REQUEST.model_copy(update={"problem": "Removed"})))
    service = start(owners)
    with pytest.raises(EvaluationNotFound):
        service.find("one")
    assert "no problem 'Removed'" in caplog.text
    start.end()
    caplog.clear()
    start(Owners())
    assert not caplog.text, "and not read again"


def test_no_promise_that_cannot_be_recorded(path, owners):
    journal = EvaluationJournal(path, 8)
    with make_service(owners, ledger=Ledger(journal)) as service:
        answer(service, ask(service, "speedup 1"))
        journal.close()
        with pytest.raises(InfrastructureError, match="the journal cannot be written"):
            ask(service, "speedup 2")
        assert service.status().queued == 0 and owners.requested == ["speedup 1"]
