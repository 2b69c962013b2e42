"""The queue by itself: joining, bounds, giving up, deadlines, kept answers and restarts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future

import pytest

from pkb_gym.engine.errors import EvaluationNotFound, InfrastructureError, ServiceBusy
from pkb_gym.engine.evaluators.queue.deadlines import DeadlineWatch
from pkb_gym.engine.evaluators.queue.entry import Entry
from pkb_gym.engine.evaluators.queue.evaluation_queue import EvaluationQueue
from pkb_gym.engine.evaluators.queue.quotas import Quota, Quotas
from pkb_gym.engine.stages.progress import WAITING
from tests.waiting import until


class Queue(EvaluationQueue):
    """A queue whose entries begin and do nothing; what has begun, and its events."""

    def __init__(self, quotas=None, max_answers=8, promise=None):
        self.started, self.events, self.promise = [], [], promise
        super().__init__(self.start, quotas or Quotas(), max_answers=max_answers, on_event=self.note)

    def start(self, entry):
        entry.enter("static")
        self.started.append(entry.key)

    def note(self, event):
        self.events.append((event.name, event.entry.key if event.entry else None))
        return self.promise if event.name in ("accepted", "joined") else None

    def ask(self, key, client="a", **arguments):
        return self.submit(Entry(key=key), client, **arguments)


def test_the_way_of_an_entry():
    queue = Queue()
    entry = queue.ask("k")
    assert queue.find(entry.id, "a") is entry and entry.state == "static" and queue.idle_s() == 0
    assert queue.enter(entry, "check") and queue.unfinished() == [entry]
    assert queue.finish(entry, "answer", keep=True) and not queue.finish(entry, "another", keep=True)
    assert (entry.answer, entry.state) == ("answer", "finished") and not queue.enter(entry, "time")
    assert queue.ask("k") is entry and queue.counts.joined == queue.counts.finished == queue.counts.submitted == 1
    assert [name for name, _ in queue.events] == ["accepted", "begun", "finished", "joined"]


def test_an_answer_that_is_not_kept_is_found_and_joined_no_more():
    queue = Queue()
    entry = queue.ask("k")
    queue.finish(entry, "fault", keep=False)
    assert queue.find(entry.id) is entry
    assert queue.join("k", "a") is None and queue.ask("k") is not entry


def test_an_entry_of_its_own_joins_none():
    queue = Queue()
    first, second = (queue.submit(Entry(key="k", joinable=False), "a") for _ in range(2))
    assert first is not second and queue.join("k", "a") is None


def test_answers_are_forgotten_by_their_last_use():
    queue = Queue(max_answers=2)
    entries = [queue.ask(key) for key in "abc"]
    for entry in entries[:2]:
        queue.finish(entry, entry.key, keep=True)
    queue.find(entries[0].id)
    queue.finish(entries[2], "c", keep=True)
    assert queue.find(entries[0].id) and queue.find(entries[2].id)
    with pytest.raises(EvaluationNotFound, match="submit the request again"):
        queue.find(entries[1].id)


def test_a_newer_entry_of_the_same_id_outlives_the_older_one():
    """A pool names evaluations by their keys."""
    queue = Queue(max_answers=1)
    older = queue.submit(Entry(key="k", id="k"), "a")
    queue.finish(older, "fault", keep=False)
    newer = queue.submit(Entry(key="k", id="k"), "a")
    queue.finish(queue.ask("other"), "x", keep=True)  # the older one is forgotten
    assert queue.find("k") is newer and queue.join("k", "a") is newer


def test_limits_of_waiting_and_running():
    queue = Queue(Quotas([Quota("a", max_queued=1, max_running=1)], max_queued=3, max_begun=2))
    for key in "ab":
        queue.ask(key)
    with pytest.raises(ServiceBusy, match="1 evaluations of a wait already, its quota"):
        queue.ask("c")
    assert queue.ask("b").interest["a"] == 2, "what is known is joined all the same"
    for key in "cde":
        queue.ask(key, "other")
    with pytest.raises(ServiceBusy, match="3 evaluations wait already"):
        queue.ask("f", "other")
    assert queue.started == ["a", "c"] and queue.counts.refused == 2
    assert queue.load() == ({"a": 1, "other": 2}, {"a": 1, "other": 1})
    queue.finish(queue.join("a", "a"), "x", keep=True)
    assert queue.started == ["a", "c", "b"]


def test_a_limit_of_all_that_is_unfinished():
    queue = Queue(Quotas(max_unfinished=1))
    entry = queue.ask("a")
    with pytest.raises(ServiceBusy, match="1 evaluations wait or run already"):
        queue.ask("b")
    queue.finish(entry, "x", keep=True)
    assert queue.ask("b").state == "static"


def test_a_higher_priority_begins_first():
    queue = Queue(Quotas(max_begun=1))
    running = queue.ask("running")
    for key, priority in (("low", 0), ("high", 2), ("risen", 0)):
        queue.ask(key, priority=priority)
    queue.ask("risen", priority=3)
    for entry in (running, *(queue.join(key, "a") for key in ("risen", "high", "low"))):
        queue.finish(entry, "x", keep=True)
    assert queue.started == ["running", "risen", "high", "low"]


def test_what_nobody_wants_never_begins_or_is_to_end():
    queue = Queue(Quotas(max_begun=1))
    running, waiting = queue.ask("running"), queue.ask("waiting")
    queue.ask("waiting", "b")
    assert not queue.give_up(waiting, "a") and queue.find(waiting.id, "b").is_wanted
    assert not queue.give_up(waiting, "a"), "one client gives up for itself"
    queue.give_up(waiting, "b")
    assert isinstance(waiting.answer, EvaluationNotFound) and queue.join("waiting", "a") is None
    assert queue.give_up(running, "a") and not queue.enter(running, "check")
    assert queue.ask("running") is not running, "nobody joins what is to end"
    queue.cancel(running, EvaluationNotFound("gone"))
    assert queue.counts.cancelled == 2 and queue.counts.finished == 0 and queue.started == ["running", "running"]


def test_a_client_leaves_with_all_its_requests():
    queue = Queue()
    entry = queue.ask("k")
    queue.ask("k")
    assert not queue.give_up(entry, "a") and queue.give_up(entry, "a", entirely=True)


def test_clients_find_what_they_asked_for():
    queue = Queue()
    entry = queue.ask("k")
    with pytest.raises(EvaluationNotFound):
        queue.find(entry.id, "b")
    queue.ask("k", "b")
    assert queue.find(entry.id, "b") is entry


def test_a_request_waits_for_its_promise_and_a_broken_one_takes_it_back():
    promise = Future()
    queue = Queue(promise=promise)
    returned = threading.Event()
    asking = threading.Thread(target=lambda: (queue.ask("k"), returned.set()))
    asking.start()
    assert not returned.wait(0.05), "not before the promise is kept"
    promise.set_result(None)
    asking.join()
    assert returned.is_set()
    queue.promise = Future()
    queue.promise.set_exception(InfrastructureError("the disk is full"))
    with pytest.raises(InfrastructureError, match="the disk is full"):
        queue.ask("lost")
    assert [entry.unwanted_since_s is not None for entry in queue.begun()] == [False, True]


def test_an_earlier_process_s_entries_are_taken_up():
    queue = Queue(Quotas(max_begun=1))
    queue.restore(Entry(key="done", interest=Counter(a=1)), "answer")
    queue.restore(Entry(key="begun", interest=Counter(a=1, b=0)))
    queue.restore(Entry(key="waiting", interest=Counter(b=1)))
    assert queue.join("done", "c").answer == "answer" and queue.started == ["begun"]
    assert queue.load() == ({"b": 1}, {"a": 1})


def test_a_closed_queue_begins_nothing():
    queue = Queue(Quotas(max_begun=1))
    running, waiting = queue.ask("running"), queue.ask("waiting")
    assert queue.close() == [waiting]
    queue.finish(running, "x", keep=True)
    assert queue.finish(waiting, "closed", keep=False) and queue.started == ["running"]
    with pytest.raises(InfrastructureError, match="has been closed"):
        queue.ask("late")


def test_clocks_stand_while_others_are_waited_for():
    queue, overdue = Queue(), []
    watch = DeadlineWatch(
        queue, 0.1, None, lambda entry, why: (overdue.append(why), queue.finish(entry, why, keep=False))
    )
    waiting = queue.ask("waiting")
    queue.enter(waiting, WAITING)
    slow = queue.ask("slow")
    queue.enter(slow, "check")
    until(lambda: overdue)
    assert overdue == ["an evaluation outlasted its 0.1 s, at: check"] and waiting.answer is None
    queue.close()
    watch.wait_closed()


def test_requests_have_deadlines_of_their_own():
    queue = Queue()
    entry = queue.ask("k", timeout_s=5)
    now = time.monotonic()
    queue.ask("k", "b", timeout_s=50)
    queue.ask("k", "c", timeout_s=1)
    assert now + 40 < entry.expires_s < now + 60, "the latest counts"
