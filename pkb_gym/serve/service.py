"""The evaluation service of one node: a queue before an evaluator that owns the devices.

    submit ─> equal to one that is known? ─ yes ─> join it
                          │ no
                          v
        journal ─> FairQueue, bounded ─> a thread each ─> evaluator ─> journal ─> answers, the last so many kept

Threads wait where the evaluator has them wait: for a processor to compile on, for the devices. So texts are compiled as
they come, in a pause too, and the queue holds only what is beyond `max_begun` and the quotas. An evaluation that has
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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait as wait_for_any
from typing import Literal, Self

from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError, PkbError, ServiceBusy
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.service import FINISHED, EvaluationRequest, ServiceStatus
from pkb_gym.serve.clients import SOLE, Client
from pkb_gym.serve.current_evaluator import MAX_FAILURES, CurrentEvaluator
from pkb_gym.serve.deadlines import DeadlineWatch
from pkb_gym.serve.evaluation import Evaluation, OwningEvaluator
from pkb_gym.serve.evaluation_index import EvaluationIndex
from pkb_gym.serve.fair_queue import FairQueue
from pkb_gym.serve.ledger import Ledger
from pkb_gym.serve.observer import Observer
from pkb_gym.serve.quotas import Quotas
from pkb_gym.serve.request_resolver import RequestResolver
from pkb_gym.serve.statistics import Statistics

logger = logging.getLogger(__name__)

MAX_QUEUED, MAX_BEGUN, MAX_ANSWERS = 1024, 64, 1024
DEADLINE_S = 300.0
MAX_BEGINS = 3
"""How often an evaluation is begun by services that end while they have it in hand."""


class _Abandoned(Exception):
    """Raised into an evaluation that no client wants any more."""


class EvaluationService:
    """Has requests of many clients judged by one evaluator; safe to use from several threads.

    Args:
        open_evaluator: makes the evaluator, when it is first needed and whenever one has to be replaced.
        device: the device that this service judges on; "auto" leaves it to the requests.
        clients: those with quotas.
        takes_keys: whether requests may bring the key of their inputs, and so know them: for trusted clients.
        max_queued: requests that may wait to begin.
        max_begun: evaluations that have begun and not finished: each is a thread and, compiled, a binary in memory.
        max_answers: answers that are kept; the least recently requested are forgotten first.
        deadline_s: what an evaluation may take, see above; None for as long as it takes, and for requests of any size.
        unwanted_s: the same once no client wants it any more; None for no difference.
        ledger: where evaluations and answers are recorded.
        observer: is called with what happens.
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
        ledger: Ledger | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._ledger, self._observer = ledger or Ledger(), observer or Observer()
        self._accepting = threading.Lock()
        self._lock = threading.RLock()
        self._evaluator = CurrentEvaluator(open_evaluator, max_failures)
        self._resolver = RequestResolver(self._evaluator, device, takes_keys=takes_keys, deadline_s=deadline_s)
        self._queue = FairQueue()
        self._begun: set[Evaluation] = set()
        self._quotas = Quotas(clients, max_queued, max_begun)
        self._index = EvaluationIndex(max_answers)
        self._statistics = Statistics()
        self._active_s = time.monotonic()
        self._closed = False
        self._deadlines = DeadlineWatch(self._lock, self._begun, deadline_s, unwanted_s, self._end_overdue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: EvaluationRequest, client: Client = SOLE) -> str:
        """Has a source judged, or joins the evaluation of an equal request; returns the evaluation's id.

        Who brings the key of the inputs asks for a measurement of its own, and joins none.

        Raises:
            ProblemNotFound, ConfigError, SizeError: the request makes no sense here.
            ServiceBusy: too many wait, of this client or of all.
            InfrastructureError: there is no evaluator, the service was closed, or the journal cannot be written.
        """
        evaluation = self._resolver.read(request)
        evaluation.interest[client.name] = 1
        # One at a time, so that equal requests meet, and none is known that the journal does not hold.
        with self._accepting:
            joined = None if evaluation.replay_key is not None else self._join(evaluation.key, client.name)
            if joined is not None:
                evaluation, promise = joined
            else:
                self._check_room(client)
                promise = self._ledger.accepted(evaluation, client.name)
                self._observer.accepted(evaluation, client.name)
                self._enqueue(evaluation, [client.name])
        self._ledger.wait_durable(promise)
        return evaluation.id

    def recover(self) -> None:
        """Takes up what an earlier service has left in the journal; to be called before any request.

        Raises:
            ConfigError: a line of the journal is no entry of this version.
        """
        for job in self._ledger.recovered():
            try:
                evaluation = self._resolver.read(job.accepted.request)
            except PkbError as error:
                logger.warning("evaluation %s of an earlier service is given up: %s", job.accepted.id, error)
                self._ledger.void(job)
                continue
            evaluation.id, evaluation.interest = job.accepted.id, Counter(job.interest)
            evaluation.requested_at_s = time.monotonic() - max(0.0, time.time() - job.accepted.at_s)
            if job.feedback is not None:
                self._ledger.keep_again(evaluation, job)
                with self._lock:
                    self._index.add(evaluation)
                    self._conclude(evaluation, job.feedback)
                evaluation.give(job.feedback)
            elif not evaluation.is_wanted:
                self._ledger.void(job)
            elif job.begun >= MAX_BEGINS:
                with self._lock:
                    self._index.add(evaluation)
                    self._begun.add(evaluation)
                why = f"the service ended {job.begun} times while it had this evaluation in hand"
                self._finish(evaluation, evaluation.lost(why))
            else:
                self._observer.recovered(evaluation)
                self._enqueue(evaluation, +evaluation.interest)

    def find(self, evaluation_id: str, client: Client = SOLE) -> Evaluation:
        """The evaluation of that id.

        Raises:
            EvaluationNotFound: this client did not ask for it, or it was given up before it began, or forgotten since.
        """
        with self._lock:
            evaluation = self._index.find(evaluation_id)
            if evaluation is None or client.name not in evaluation.interest:
                raise EvaluationNotFound(f"no evaluation {evaluation_id!r} is known; submit the request again")
            return evaluation

    def wait(self, evaluation_id: str, timeout_s: float | None = None) -> Feedback | None:
        """Waits for an answer.

        Args:
            evaluation_id: what `submit` returned.
            timeout_s: how long; None for as long as it takes.

        Returns:
            The feedback; None if the time passed first.

        Raises:
            EvaluationNotFound: there is no such evaluation.
            ConfigError, SizeError: the evaluator refused the request.
            InfrastructureError: the service was closed; it goes on when it is started again.
        """
        answer = self.find(evaluation_id).answer
        done, _ = wait_for_any([answer], timeout_s)
        return answer.result() if done else None

    def give_up(self, evaluation_id: str, client: Client = SOLE) -> None:
        """Takes back one `submit`. If no other client wants the evaluation, it never begins, or ends early.

        Raises:
            EvaluationNotFound: there is no such evaluation.
        """
        evaluation = self.find(evaluation_id, client)
        with self._lock:
            if evaluation.interest[client.name] == 0 or evaluation.answer.done():
                return
            evaluation.interest[client.name] -= 1
            self._ledger.gave_up(evaluation, client.name)
            queued = evaluation in self._queue
            if not evaluation.interest[client.name]:
                self._queue.remove(evaluation, client.name)
            if evaluation.is_wanted:
                return
            if queued:
                self._queue.remove(evaluation)
                self._index.forget(evaluation)
                self._end(evaluation, EvaluationNotFound(f"evaluation {evaluation_id} was given up"))
            elif evaluation in self._begun:
                evaluation.unwanted_since_s = time.monotonic()
                self._index.join_no_more(evaluation)  # whoever asks again gets one that goes on to its end
                self._deadlines.look()

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to another program until `resume`; whether nothing runs: see `CurrentEvaluator.pause`."""
        return self._evaluator.pause(timeout_s)

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        self._evaluator.resume()

    def idle_s(self) -> float:
        """Seconds since anything was asked for, begun or finished; 0 while something waits or runs."""
        with self._lock:
            return 0.0 if self._queue or self._begun else time.monotonic() - self._active_s

    def status(self) -> ServiceStatus:
        """The state of the service, and its counts."""
        with self._lock:
            states = [evaluation.state for evaluation in (*self._queue, *self._begun)]
            return self._statistics.status(states, paused=self._evaluator.paused)

    def load(self) -> tuple[dict[str, int], dict[str, int]]:
        """Evaluations of each client that wait to begin, and that have begun and not finished."""
        with self._lock:
            return self._queue.counts(), self._quotas.begun()

    def close(self) -> None:
        """Ends every process; calling it again changes nothing.

        Evaluations that have not finished stay in the journal; without one they are answered as `infrastructure`.
        """
        with self._lock:
            self._closed = True
            waiting = list(self._queue)
            for evaluation in waiting:
                self._queue.remove(evaluation)
            self._begun.update(waiting)
        self._deadlines.close()
        self._evaluator.refuse()
        for evaluation in waiting:
            self._finish(evaluation, evaluation.lost("the service was closed"))
        self._replace(None, "the service was closed")
        self._evaluator.wait_closed()

    def _join(self, key: str, client: str) -> tuple[Evaluation, int] | None:
        """The evaluation of an equal request, which this client asks for from now on, and the number of the promise."""
        with self._lock:
            self._active_s = time.monotonic()
            if (found := self._index.find_equal(key)) is None:
                return None
            found.interest[client] += 1
            self._statistics.joined += 1
            if found in self._queue:
                self._queue.push(found, client)
            self._observer.joined(found, client)
            return found, 0 if found.answer.done() else self._ledger.joined(found, client)

    def _check_room(self, client: Client) -> None:
        """Raises what `submit` raises where one more evaluation may not wait."""
        try:
            with self._lock:
                if self._closed:
                    raise InfrastructureError("this service has been closed")
                self._quotas.check_room(self._queue, client)
        except ServiceBusy as busy:
            self._statistics.refused += 1
            self._observer.refused(client.name, busy)
            raise

    def _enqueue(self, evaluation: Evaluation, clients: Iterable[str]) -> None:
        with self._lock:
            self._index.add(evaluation)
            for client in clients:
                self._queue.push(evaluation, client)
            self._begin_next()

    def _begin_next(self) -> None:
        """Called with the lock held."""
        while (following := self._queue.pop(self._quotas.may_begin)) is not None:
            evaluation, client = following
            evaluation.client = client
            evaluation.enter("static")
            self._begun.add(evaluation)
            self._quotas.begin(client)
            self._ledger.begun(evaluation)
            self._observer.begun(evaluation)
            self._deadlines.look()
            # Not a pool: a thread that hangs in an evaluator must not take a place from others, nor keep Python alive.
            threading.Thread(target=self._judge, args=(evaluation,), name="pkb-evaluation", daemon=True).start()

    def _judge(self, evaluation: Evaluation) -> None:
        def report(state: str) -> None:
            with self._lock:
                if evaluation in self._begun:
                    if evaluation.unwanted_since_s is not None:
                        raise _Abandoned
                    evaluation.enter(state)
                    self._deadlines.look()

        evaluator: OwningEvaluator | None = None
        try:
            with self._lock:
                evaluator = evaluation.evaluator = self._evaluator.get()
            answer: Feedback | Exception = evaluator.evaluate(
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

    def _finish(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        with self._lock:
            if evaluation not in self._begun:
                return  # answered already, when its evaluator was replaced
            self._begun.remove(evaluation)
            if evaluation.client:
                self._quotas.end(evaluation.client)
            self._active_s = time.monotonic()
            feedback = answer if isinstance(answer, Feedback) else None
            goes_on = self._closed and self._ledger.is_kept
            if goes_on:
                answer = InfrastructureError(
                    "the service ends; it goes on with this evaluation when it is started again"
                )
            self._statistics.finish(feedback)
            self._conclude(evaluation, feedback)
            if not self._closed:
                self._begin_next()
        if goes_on:
            evaluation.give(answer)
        else:
            self._end(evaluation, answer)

    def _conclude(self, evaluation: Evaluation, feedback: Feedback | None) -> None:
        """Called with the lock held: an answer is kept for equal requests, unless another attempt may find another."""
        evaluation.enter(FINISHED)
        self._index.answered(evaluation)
        if feedback is None or feedback.failure is Failure.INFRASTRUCTURE:
            self._index.join_no_more(evaluation)

    def _end(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        """Records an answer, then lets clients have it."""
        self._ledger.answered(evaluation, answer if isinstance(answer, Feedback) else None)
        self._observer.finished(evaluation, answer)
        evaluation.give(answer)

    def _replace(self, broken: OwningEvaluator | None, why: str) -> None:
        """Parts with an evaluator, by default the one at work; what it has in hand is lost."""
        with self._lock:
            retired = self._evaluator.retire(broken)
            if retired is None:
                return  # another of its evaluations has seen to it
            if not self._closed:
                self._statistics.restarts += 1
                self._observer.evaluator_replaced(why)
            lost = [evaluation for evaluation in self._begun if evaluation.evaluator is retired]
        for evaluation in lost:
            self._finish(evaluation, evaluation.lost(f"its evaluator was replaced: {why}"))
        self._evaluator.part_with(retired)

    def _end_overdue(self, evaluation: Evaluation, why: str) -> None:
        if evaluation.evaluator is not None:
            self._replace(evaluation.evaluator, why)
        self._finish(evaluation, evaluation.lost(why))
