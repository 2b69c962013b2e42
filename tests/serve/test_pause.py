"""A pause: the devices are somebody else's, and texts are compiled all the same."""

from __future__ import annotations

import threading

from pkb_gym.engine.records.feedback import Failure
from tests.serve.fake_owner import answer, ask, make_service, stays_unanswered
from tests.waiting import PATIENCE_S, until


def test_nothing_runs_while_paused_and_compiling_goes_on(service, owners):
    answer(service, ask(service, "speedup 1"))
    assert service.pause() and service.status().paused
    requested = [ask(service, f"speedup {number}") for number in (2, 3)]
    until(lambda: service.status().waiting == 2)
    assert stays_unanswered(service, requested[0]) and service.status().running == 0
    service.resume()
    assert all(answer(service, each).passed for each in requested) and not service.status().paused


def test_a_pause_waits_for_what_runs(service, owners):
    running = ask(service, "run")
    until(lambda: service.status().running)
    assert not service.pause(0.05), "it still runs"
    waiting = ask(service, "speedup 1")
    until(lambda: service.status().waiting == 1)
    threading.Timer(0.1, owners.opened[0].goes_on.set).start()
    assert service.pause(PATIENCE_S)
    assert answer(service, running).passed and stays_unanswered(service, waiting)
    service.resume()
    assert answer(service, waiting).passed


def test_resuming_ends_a_pause_that_still_waits(service, owners):
    ask(service, "run")
    until(lambda: service.status().running)
    came: list[bool] = []
    pausing = threading.Thread(target=lambda: came.append(service.pause()))
    pausing.start()
    until(lambda: service.status().paused)
    service.resume()
    pausing.join(PATIENCE_S)
    assert came == [False] and not service.status().paused
    owners.opened[0].goes_on.set()
    assert answer(service, ask(service, "speedup 1")).passed


def test_an_evaluator_that_replaces_another_is_paused_too(service, owners):
    assert service.pause()
    assert answer(service, ask(service, "break")).failure is Failure.INFRASTRUCTURE
    waiting = ask(service, "speedup 1")
    until(lambda: service.status().waiting == 1)
    assert len(owners.opened) == 2 and stays_unanswered(service, waiting)
    service.resume()
    assert answer(service, waiting).passed


def test_a_hanging_candidate_does_not_hold_up_a_pause_for_good(owners):
    with make_service(owners, deadline_s=0.2) as service:
        ask(service, "run")
        until(lambda: service.status().running)
        assert service.pause(PATIENCE_S) and service.status().restarts == 1


def test_a_long_pause_costs_no_evaluation_its_time(owners):
    with make_service(owners, deadline_s=0.5) as service:
        service.pause()
        waiting = ask(service, "speedup 1")
        assert stays_unanswered(service, waiting, 0.7)
        service.resume()
        assert answer(service, waiting).passed and service.status().restarts == 0
