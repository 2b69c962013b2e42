"""The queue: what is evaluated once, what is refused, what is counted."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import (
    ConfigError,
    EvaluationNotFound,
    InfrastructureError,
    ProblemNotFound,
    ServiceBusy,
    SizeError,
)
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.service import EvaluationRequest
from tests.serve.fake_owner import ON_TWO, answer, ask, make_service
from tests.waiting import until


def test_a_source_is_judged(service, owners):
    feedback = answer(service, ask(service, "speedup 3"))
    assert (feedback.passed, feedback.problem, feedback.timing.speedup_low) == (True, "AllReduce", 3.0)
    assert len(owners.opened) == 1, "the evaluator is opened when it is first needed, and kept"
    answer(service, ask(service, "speedup 4"))
    assert len(owners.opened) == 1


def test_equal_requests_in_flight_are_evaluated_once(service, owners):
    first, second = ask(service, "run"), ask(service, "run")
    assert first == second
    owners.opened[0].goes_on.set()
    assert answer(service, first) == answer(service, second)
    assert len(owners.requested) == 1 and service.status().joined == 1


def test_an_equal_request_later_gets_the_same_answer(service, owners):
    feedback = answer(service, ask(service, "speedup 2"))
    assert answer(service, ask(service, "speedup 2")) is feedback
    assert len(owners.requested) == 1


@pytest.mark.parametrize("changes", [{"seed": 1}, {"turn": 1}, {"dtype": "float32"}, {"until": "check"}])
def test_another_configuration_is_another_request(service, owners, changes):
    answer(service, ask(service, "speedup 2"))
    answer(service, ask(service, "speedup 2", **changes))
    assert len(owners.requested) == 2


def test_what_defaults_come_to_is_the_same_request(service, owners):
    answer(service, ask(service, "speedup 2"))
    answer(service, ask(service, "speedup 2", dtype="bfloat16", trials=4))
    assert len(owners.requested) == 1


def test_a_fault_of_ours_is_no_answer_to_the_next_who_asks(service, owners):
    assert answer(service, ask(service, "infrastructure")).failure is Failure.INFRASTRUCTURE
    assert answer(service, ask(service, "infrastructure")).failure is Failure.INFRASTRUCTURE
    status = service.status()
    assert len(owners.requested) == 2 and (status.infrastructure_faults, status.joined, status.restarts) == (2, 0, 0)


def test_lone_surrogates_are_no_fault(service):
    assert answer(service, ask(service, "\ud800")).failure is Failure.REJECTED


def test_requests_without_sense_are_refused_at_once(service, owners):
    with pytest.raises(ProblemNotFound, match="Did you mean 'AllReduce'"):
        service.submit(EvaluationRequest(problem="AllReduc", source="speedup 1", config=ON_TWO))
    with pytest.raises(ConfigError, match="does not run on device"):
        ask(service, "speedup 1", language="cuda")
    with pytest.raises(SizeError, match="no size 'huge'"):
        ask(service, "speedup 1", size="huge")
    assert not owners.requested and service.status().finished == 0


def test_what_the_evaluator_refuses_is_raised_where_the_answer_is_read(service, owners):
    refused = ask(service, "refuse")
    with pytest.raises(ConfigError, match="no such thing here"):
        answer(service, refused)
    status = service.status()
    assert (status.finished, status.infrastructure_faults, status.restarts) == (1, 0, 0)
    assert ask(service, "refuse") != refused, "asked again, it is tried again"


def test_a_full_queue_refuses(owners):
    with make_service(owners, max_queued=2, max_begun=1) as service:
        first = [ask(service, "run"), ask(service, "speedup 1"), ask(service, "speedup 2")]
        until(lambda: service.status().running == 1)
        with pytest.raises(ServiceBusy, match="2 evaluations wait already"):
            ask(service, "speedup 3")
        assert ask(service, "speedup 2") == first[2], "what is known is joined all the same"
        status = service.status()
        assert (status.running, status.queued, status.refused) == (1, 2, 1)
        owners.opened[0].goes_on.set()
        assert all(answer(service, each).passed for each in first)
        assert answer(service, ask(service, "speedup 3")).passed


def test_texts_are_compiled_side_by_side_and_one_candidate_runs(service, owners):
    for number in range(3):
        ask(service, f"compile {number}")
    ask(service, "run")
    until(lambda: service.status().running == 1)
    ask(service, "speedup 1")
    until(lambda: (service.status().compiling, service.status().running, service.status().waiting) == (3, 1, 1))


def test_answers_are_bounded(owners):
    with make_service(owners, max_answers=2) as service:
        first, second = (ask(service, f"speedup {number}") for number in (1, 2))
        answer(service, first), answer(service, second)
        answer(service, first)  # asked for last, so kept longest
        answer(service, ask(service, "speedup 3"))
        assert answer(service, first).passed
        with pytest.raises(EvaluationNotFound, match="submit the request again"):
            service.find(second)
        answer(service, ask(service, "speedup 2"))
        assert len(owners.requested) == 4


def test_what_nobody_waits_for_any_more_never_begins(owners):
    with make_service(owners, max_begun=1) as service:
        ask(service, "run")
        until(lambda: service.status().running == 1)
        wanted, unwanted = ask(service, "speedup 1"), ask(service, "speedup 9")
        assert ask(service, "speedup 1") == wanted
        service.give_up(wanted)
        service.give_up(unwanted)
        assert service.status().queued == 1
        with pytest.raises(EvaluationNotFound):
            service.find(unwanted)
        owners.opened[0].goes_on.set()
        assert answer(service, wanted).passed
        assert [source for source in owners.requested if source == "speedup 2"] == ["speedup 2"], (
            "the one that stands for run"
        )


def test_what_nobody_waits_for_any_more_ends_at_its_next_stage(owners):
    with make_service(owners) as service:
        unwanted = ask(service, "compile")
        until(lambda: service.status().compiling == 1)
        service.give_up(unwanted)
        again = ask(service, "compile")
        assert again != unwanted, "whoever asks again must not join what is being ended"
        owners.opened[0].goes_on.set()
        with pytest.raises(EvaluationNotFound, match="was given up"):
            answer(service, unwanted)
        assert answer(service, again).passed and len(owners.opened) == 1


def test_what_goes_on_unwanted_is_ended_with_its_evaluator(owners):
    """A kernel that never ends held the devices for minutes after its command was interrupted."""
    with make_service(owners, unwanted_s=0.05) as service:
        unwanted = ask(service, "run")
        until(lambda: service.status().running == 1)
        service.give_up(unwanted)
        assert answer(service, unwanted).failure is Failure.INFRASTRUCTURE
        assert answer(service, ask(service, "speedup 1")).passed and len(owners.opened) == 2


def test_clients_bring_keys_only_where_they_may(owners, service):
    request = EvaluationRequest(problem="AllReduce", source="speedup 1", config=ON_TWO, replay_key="0a")
    with pytest.raises(ConfigError, match="a key of its own; ask without a replay key"):
        service.submit(request)
    with make_service(owners, takes_keys=True) as open_service:
        first, second = open_service.submit(request).id, open_service.submit(request).id
        assert first != second, "a measurement of its own"
        assert answer(open_service, first).passed and answer(open_service, second).passed
        assert owners.opened[-1].replay_keys == [b"\n", b"\n"]


def test_a_service_of_one_client_alone_has_no_limits(owners, service):
    """`pkb eval` refused through its background evaluator what it judged with `--fresh`."""
    large = ON_TWO.model_copy(update={"size": {"M": 1 << 20, "N": 1}, "timeout_s": 3600.0})
    request = EvaluationRequest(problem="AllReduce", source="speedup 1", config=large)
    with pytest.raises(SizeError, match="this service takes numbers up to 524288 for M"):
        service.submit(request)
    with make_service(owners, deadline_s=None, unwanted_s=0.05) as unlimited:
        assert answer(unlimited, unlimited.submit(request).id).passed
        endless = ask(unlimited, "run")
        until(lambda: unlimited.status().running == 1)
        unlimited.give_up(endless)
        assert answer(unlimited, endless).failure is Failure.INFRASTRUCTURE


def test_a_service_is_idle_from_its_last_answer_on(owners, service):
    judged = ask(service, "compile")
    until(lambda: service.status().compiling == 1)
    assert service.idle_s() == 0
    owners.opened[0].goes_on.set()
    answer(service, judged)
    until(lambda: service.idle_s() > 0)


def test_the_status_counts(service):
    answer(service, ask(service, "speedup 1"))
    answer(service, ask(service, "compile_error"))
    status = service.status()
    assert (status.finished, status.evaluations_per_minute, status.paused) == (2, 2, False)
    assert status.uptime_s > 0 and all(seconds >= 0 for seconds in status.durations_s.values())


def test_a_service_may_be_for_one_device(owners):
    with make_service(owners, device="cpu") as service:
        assert answer(service, ask(service, "speedup 1", device="auto")).config.device == "cpu"
        with pytest.raises(ConfigError, match="judges on device 'cpu'; the request asks for 'cuda'"):
            ask(service, "speedup 1", device="cuda")


def test_closing_answers_everything(owners):
    with make_service(owners, max_begun=1) as service:
        running, queued = ask(service, "run"), ask(service, "speedup 1")
        service.close()
        assert answer(service, running).failure is answer(service, queued).failure is Failure.INFRASTRUCTURE
        assert "the service was closed" in answer(service, queued).message
        assert owners.opened[0].closed
        with pytest.raises(InfrastructureError, match="has been closed"):
            ask(service, "speedup 9")
        assert service.status().restarts == 0
        service.close()
