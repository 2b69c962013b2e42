"""The evaluation service of one node: a queue before an evaluator that owns the devices.

    submit ─> journal ─> EvaluationQueue ─> a thread each ─> evaluator ─> journal, results ─> answers

Threads wait where the evaluator has them wait: for a processor to compile on, for the devices. So sources are compiled
as they come, in a pause too, and the queue holds only what is beyond `max_begun` and the quotas. An evaluation that has
begun and that no client wants any more ends where its next stage would begin.
An evaluation has `deadline_s` of compiling and of having the devices; waiting for others does not count. After that,
after an error of the evaluator's own, or after several infrastructure failures in a row, the evaluator is replaced by a
fresh one, and its evaluations are answered as `infrastructure`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, Self

from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError, PkbError
from pkb_gym.engine.evaluators.evaluator import machine_of
from pkb_gym.engine.evaluators.queue.deadlines import DeadlineWatch
from pkb_gym.engine.evaluators.queue.evaluation_queue import EvaluationQueue
from pkb_gym.engine.evaluators.queue.quotas import Quotas
from pkb_gym.engine.evaluators.queue.store import StoredEvaluation
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.records.service import EvaluationRequest, ServiceStatus
from pkb_gym.serve.clients import SOLE, Client
from pkb_gym.serve.current_evaluator import MAX_FAILURES, CurrentEvaluator
from pkb_gym.serve.evaluation import Evaluation, OwningEvaluator, ServiceEvent
from pkb_gym.serve.recorder import Recorder
from pkb_gym.serve.requests import RequestResolver
from pkb_gym.serve.statistics import Statistics

logger = logging.getLogger(__name__)

MAX_QUEUED, MAX_BEGUN, MAX_ANSWERS = 1024, 64, 1024
DEADLINE_S = 300.0
MAX_BEGINS = 3
"""Maximum number of starts of an evaluation by services that end while they have it in hand."""


class _Abandoned(Exception):
    """Raised into an evaluation that no client wants any more."""


class ServiceObserver:
    """Observer of a service, called from several threads; every method returns soon and raises nothing."""

    def observe(self, event: ServiceEvent) -> None:
        """Something happened in the queue."""

    def evaluator_replaced(self, why: str) -> None:
        """The evaluator had to go."""


class EvaluationService:
    """Has requests of many clients judged by one evaluator; safe in several threads.

    Args:
        open_evaluator: Makes the evaluator, when it is first needed and whenever one has to be replaced.
        device: Device that this service judges on; "auto" leaves it to the requests.
        clients: Clients with quotas.
        takes_keys: Whether requests may bring the key of their inputs, and so know them: for trusted clients.
        max_queued: Requests that may wait to begin, at least 1.
        max_begun: Evaluations that have begun and not finished: each is a thread and, compiled, a binary in memory.
        max_answers: Answers that are kept; the least recently requested are forgotten first.
        deadline_s: Seconds that an evaluation may take, see above; None for no limit, and for requests of any size.
        unwanted_s: Seconds that an evaluation may take once no client wants it any more; None for no limit of its own.
        max_failures: Infrastructure failures in a row after which the evaluator is replaced; None for any number.
        recorder: Records evaluations and answers.
        observers: Observers of what happens.
    """

    def __init__(
        self,
        open_evaluator: Callable[[], OwningEvaluator],
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        clients: Sequence[Client] = (SOLE,),
        takes_keys: bool = False,
        max_queued: int = MAX_QUEUED,
        max_begun: int = MAX_BEGUN,
        max_answers: int = MAX_ANSWERS,
        deadline_s: float | None = DEADLINE_S,
        unwanted_s: float | None = None,
        max_failures: int | None = MAX_FAILURES,
        recorder: Recorder | None = None,
        observers: Sequence[ServiceObserver] = (),
    ) -> None:
        self._recorder, self._observers = recorder or Recorder(), observers
        self._evaluator, self._device = CurrentEvaluator(open_evaluator, max_failures), device
        self._resolver = RequestResolver(self._evaluator, device, takes_keys, deadline_s)
        self._statistics = Statistics()
        self._assigning = threading.Lock()
        """Held where evaluators are assigned to evaluations; the queue's lock may be taken inside, not the reverse."""
        quotas = Quotas(clients, max_queued=max_queued, max_begun=max_begun)
        self._queue: EvaluationQueue[Evaluation, Feedback] = EvaluationQueue(
            self._begin, quotas, max_answers=max_answers, on_event=self._on_event
        )
        self._deadlines = DeadlineWatch(self._queue, deadline_s, unwanted_s, self._end_overdue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: EvaluationRequest, client: Client = SOLE) -> Evaluation:
        """Has a source judged, or joins the evaluation of an equal request.

        A client that brings the key of the inputs asks for a measurement of its own, and joins none.

        Raises:
            ProblemNotFound, ConfigError, SizeError: The request makes no sense here.
            ServiceBusy: Too many wait, of this client or of all.
            InfrastructureError: There is no evaluator, the service was closed, or the journal cannot be written.
        """
        return self._queue.submit(self._resolver.read(request), client.name)

    def recover(self) -> None:
        """Takes up what an earlier service has left in the journal; to be called before any request.

        Raises:
            ConfigError: A record of the journal is none of this version.
        """
        for stored in self._recorder.stored():
            try:
                evaluation = self._resolver.read(stored.request)
            except PkbError as error:
                logger.warning("evaluation %s of an earlier service is given up: %s", stored.id, error)
                if stored.feedback is None:
                    self._recorder.drop(stored.id)
                continue
            evaluation.id, evaluation.interest = stored.id, Counter(stored.interest)
            evaluation.requested_at_s = time.monotonic() - max(0.0, time.time() - stored.accepted_at_s)
            self._restore(evaluation, stored)

    def find(self, evaluation_id: str, client: Client = SOLE) -> Evaluation:
        """The evaluation of that id.

        Raises:
            EvaluationNotFound: This client did not ask for it, or it was given up before it began, or forgotten since.
        """
        return self._queue.find(evaluation_id, client.name)

    def give_up(self, evaluation_id: str, client: Client = SOLE) -> None:
        """Takes back one `submit`. If no other client wants the evaluation, it never begins, or ends early.

        Raises:
            EvaluationNotFound: There is no such evaluation.
        """
        self._queue.give_up(self.find(evaluation_id, client), client.name)

    def machine(self) -> Machine:
        """The machine of the evaluator, limited to the device of this service.

        Raises:
            InfrastructureError: There is no evaluator, or the service was closed.
        """
        machine = machine_of(self._evaluator.get())
        return machine if self._device == "auto" else machine.model_copy(update={"device": self._device})

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to another program until `resume`; whether nothing runs: see `CurrentEvaluator.pause`."""
        return self._evaluator.pause(timeout_s)

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        self._evaluator.resume()

    def idle_s(self) -> float:
        """Seconds since anything was asked for, begun or finished; 0 while something waits or runs."""
        return self._queue.idle_s()

    def status(self) -> ServiceStatus:
        """The state of the service, and its counts."""
        states = [evaluation.state for evaluation in self._queue.unfinished()]
        return self._statistics.status(self._queue.counts, states, paused=self._evaluator.paused)

    def load(self) -> tuple[dict[str, int], dict[str, int]]:
        """Evaluations of each client that wait to begin, and that have begun and not finished."""
        return self._queue.load()

    def close(self) -> None:
        """Ends every process; calling it again changes nothing.

        Evaluations that have not finished stay in the journal; without one they are answered as `infrastructure`.
        """
        waiting = self._queue.close()
        self._deadlines.wait_closed()
        self._evaluator.refuse()
        for evaluation in waiting:
            self._finish(evaluation, evaluation.lost("the service was closed"))
        self._replace(None, "the service was closed")
        self._evaluator.wait_closed()

    def _restore(self, evaluation: Evaluation, stored: StoredEvaluation) -> None:
        feedback = stored.feedback
        if feedback is not None:
            self._recorder.keep_again(evaluation, stored)
        elif not evaluation.is_wanted:
            self._recorder.drop(stored.id)
            return
        elif stored.begun >= MAX_BEGINS:
            feedback = evaluation.lost(f"the service ended {stored.begun} times while it had this evaluation in hand")
            self._on_event(ServiceEvent("finished", "", evaluation, feedback))
        self._queue.restore(evaluation, feedback, keep=feedback is None or not _is_fault(feedback))

    def _begin(self, evaluation: Evaluation) -> None:
        evaluation.enter("static")
        # Not a pool: a thread that hangs in an evaluator must not take a place from others, nor keep Python alive.
        threading.Thread(target=self._judge, args=(evaluation,), name="pkb-evaluation", daemon=True).start()

    def _judge(self, evaluation: Evaluation) -> None:
        def report(state: str) -> None:
            if not self._queue.enter(evaluation, state):
                raise _Abandoned

        evaluator: OwningEvaluator | None = None
        try:
            with self._assigning:
                evaluator = evaluation.evaluator = self._evaluator.get()
            answer: Feedback | PkbError = evaluator.evaluate(
                evaluation.problem,
                evaluation.source,
                evaluation.config,
                report,
                replay_key=evaluation.replay_key,
            )
        except ConfigError as refused:
            answer = refused
        except _Abandoned:
            answer = EvaluationNotFound(f"evaluation {evaluation.id} was given up")
        except Exception as error:  # whatever it is, clients get an answer
            why = f"{type(error).__name__}: {error}"
            logger.warning("the evaluator is replaced: %s", why, exc_info=not isinstance(error, InfrastructureError))
            if evaluator is not None:
                self._replace(evaluator, why)
            answer = evaluation.lost(why)
        broken = None
        if evaluator is not None and isinstance(answer, Feedback):
            broken = self._evaluator.why_broken(evaluator, answer)
        self._finish(evaluation, answer)
        if broken is not None:
            logger.warning("the evaluator is replaced: %s", broken)
            self._replace(evaluator, broken)

    def _finish(self, evaluation: Evaluation, answer: Feedback | PkbError) -> None:
        """Answers an evaluation; the answer is kept for equal requests, unless another attempt may find another."""
        goes_on = self._queue.is_closed and self._recorder.is_kept
        if goes_on:
            answer = InfrastructureError("the service ends; it goes on with this evaluation when it is started again")
        keep = isinstance(answer, Feedback) and not _is_fault(answer)
        self._queue.finish(evaluation, answer, keep=keep, report=not goes_on)

    def _replace(self, broken: OwningEvaluator | None, why: str) -> None:
        """Parts with an evaluator, by default the one at work; what it has in hand is lost."""
        with self._assigning:
            retired = self._evaluator.retire(broken)
            if retired is None:
                return  # another of its evaluations has seen to it
            lost = [evaluation for evaluation in self._queue.begun() if evaluation.evaluator is retired]
        if not self._queue.is_closed:
            self._statistics.restarts += 1
            for observer in self._observers:
                observer.evaluator_replaced(why)
        for evaluation in lost:
            self._finish(evaluation, evaluation.lost(f"its evaluator was replaced: {why}"))
        self._evaluator.part_with(retired)

    def _end_overdue(self, evaluation: Evaluation, why: str) -> None:
        if evaluation.evaluator is not None:
            self._replace(evaluation.evaluator, why)
        self._finish(evaluation, evaluation.lost(why))

    def _on_event(self, event: ServiceEvent) -> Future[None] | None:
        promise = self._recorder.record(event)
        if event.name == "finished":
            self._statistics.finished(event.answer)
        for observer in self._observers:
            observer.observe(event)
        return promise


def _is_fault(feedback: Feedback) -> bool:
    return feedback.failure is Failure.INFRASTRUCTURE
