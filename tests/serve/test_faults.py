"""Evaluators that break, hang or cannot be opened: nobody waits in vain, and the next evaluation finds a fresh one."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Failure
from tests.serve.fake_owner import answer, ask, make_service, stays_unanswered
from tests.waiting import until


@pytest.mark.parametrize(
    ("source", "words"), [("stop", "the machine is on fire"), ("break", "ZeroDivisionError: a mistake of ours")]
)
def test_an_evaluator_that_raises_is_replaced(service, owners, source, words):
    lost = answer(service, ask(service, source))
    assert lost.failure is Failure.INFRASTRUCTURE and words in lost.message
    assert (lost.problem, lost.config.world_size, lost.stage) == ("AllReduce", 2, None)
    assert answer(service, ask(service, "speedup 1")).passed
    until(lambda: owners.opened[0].closed)
    assert len(owners.opened) == 2 and not owners.opened[1].closed
    assert service.status().restarts == service.status().infrastructure_faults == 1


def test_an_evaluator_that_fails_every_time_is_replaced(owners):
    """It raised nothing: from some point on every evaluation was an infrastructure failure, until the service ended."""
    with make_service(owners, max_failures=3) as service:
        for source in ("infrastructure", "infrastructure 1", "speedup 1", "infrastructure 2", "infrastructure 3"):
            answer(service, ask(service, source))
        answer(service, ask(service, "compile_error"))  # says nothing of the ranks
        assert service.status().restarts == 0 and len(owners.opened) == 1
        lost = answer(service, ask(service, "infrastructure 4"))
        assert lost.failure is Failure.INFRASTRUCTURE
        until(lambda: service.status().restarts == 1 and owners.opened[0].closed)
        assert answer(service, ask(service, "infrastructure 5")).failure is Failure.INFRASTRUCTURE
        assert answer(service, ask(service, "speedup 2")).passed
        assert len(owners.opened) == 2 and service.status().restarts == 1, "the next evaluator is counted anew"


def test_a_size_of_a_clients_own_that_the_baseline_fails_at_replaces_no_evaluator(owners):
    """Three requests for a vocabulary of no words took the evaluations of all other clients with them."""
    with make_service(owners, max_failures=3) as service:
        for number in range(5):
            lost = answer(service, ask(service, f"infrastructure {number}", size={"M": number + 1}))
            assert lost.failure is Failure.INFRASTRUCTURE
        assert service.status().restarts == 0
        for number in range(2):  # an evaluator in disorder fails at any size
            answer(service, ask(service, f"infrastructure {number}", size="tiny"))
        until(lambda: service.status().restarts == 1)


def test_failures_that_are_meant_replace_no_evaluator(owners):
    with make_service(owners, max_failures=None) as service:
        for number in range(5):
            answer(service, ask(service, f"infrastructure {number}"))
        assert service.status().restarts == 0


def test_only_its_own_evaluations_are_lost(owners):
    with make_service(owners, max_begun=2) as service:
        running = ask(service, "run")
        until(lambda: owners.opened and owners.opened[0].replay_keys)  # by the evaluator that is about to break
        _, queued = ask(service, "break"), ask(service, "speedup 1")
        lost = answer(service, running)
        assert lost.failure is Failure.INFRASTRUCTURE and "its evaluator was replaced" in lost.message
        assert answer(service, queued).passed
        assert answer(service, ask(service, "speedup 1")).passed
        assert service.status().restarts == 1


@pytest.mark.parametrize(("source", "stage"), [("compile", "compile"), ("run", "preparing ranks")])
def test_an_evaluation_that_outlasts_its_deadline_is_answered(owners, source, stage):
    with make_service(owners, deadline_s=0.4) as service:
        lost = answer(service, ask(service, source))
        assert lost.failure is Failure.INFRASTRUCTURE
        assert f"outlasted its 0.4 s, at: {stage}" in lost.message
        assert answer(service, ask(service, "speedup 1")).passed
        assert len(owners.opened) == 2 and service.status().restarts == 1


def test_waiting_for_others_does_not_count(owners):
    with make_service(owners, deadline_s=0.5) as service:
        answer(service, ask(service, "speedup 1"))
        owners.opened[0].arbiter.pause()
        waiting = ask(service, "speedup 2")
        assert stays_unanswered(service, waiting, 0.7)
        owners.opened[0].arbiter.resume()
        assert answer(service, waiting).passed and service.status().restarts == 0


def test_an_answer_that_comes_too_late_changes_nothing(owners):
    with make_service(owners, deadline_s=0.1) as service:
        lost = ask(service, "run")
        feedback = answer(service, lost)
        until(lambda: owners.opened[0].requested)  # `close` let it go on, and it came to an answer
        assert answer(service, lost) is feedback and service.status().finished == 1


def test_no_evaluator_to_be_had_is_a_fault_of_ours(service, owners):
    owners.error = InfrastructureError("no room")
    with pytest.raises(InfrastructureError, match="no room"):
        ask(service, "speedup 1")
    owners.error = None
    assert answer(service, ask(service, "speedup 1")).passed
