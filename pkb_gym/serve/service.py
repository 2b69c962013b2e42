"""The evaluation service of one node: a queue before an evaluator that owns the devices.

    submit ─> equal to one that is known? ─ yes ─> join it
                          │ no
                          v
                  queue, bounded ─> a thread each ─> evaluator ─> answers, the last so many kept

Threads wait where the evaluator has them wait: for a processor to compile on, for the devices. So texts are compiled as
they come, in a pause too, and the queue holds only what is beyond `max_begun`.

An evaluation that has begun and that nobody asks for any more ends where its next stage would begin.

An infrastructure failure is no hang. An evaluation has `deadline_s` of compiling and of having the devices; waiting
for others does not count. When that has passed, or when the evaluator raises what is no refusal of the request, the
evaluator is replaced by a fresh one, and what it had in hand is answered as `infrastructure`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import wait as wait_for_any
from typing import Literal, Self

from pkb_gym.engine.errors import ConfigError, EvaluationNotFound, InfrastructureError, ServiceBusy
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.service import FINISHED, EvaluationRequest, ServiceStatus
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.serve.evaluation import Evaluation, OwningEvaluator
from pkb_gym.serve.statistics import Statistics

logger = logging.getLogger(__name__)

MAX_QUEUED, MAX_BEGUN, MAX_ANSWERS = 1024, 64, 1024
DEADLINE_S = 300.0
PAUSE_STEP_S = 0.2
"""How long a pause waits for one evaluator before it looks whether that was replaced, or the pause ended."""


class _Unwanted(Exception):
    """Raised into an evaluation that nobody asks for any more."""


class EvaluationService:
    """Has requests of many clients judged by one evaluator; safe to use from several threads.

    Args:
        open_evaluator: makes the evaluator, when it is first needed and whenever one has to be replaced.
        device: the device that this service judges on; "auto" leaves it to the requests.
        takes_keys: whether requests may bring the key of their inputs. Who knows it knows the inputs, so this is for
            clients who would cheat nobody but themselves.
        max_queued: requests that may wait to begin.
        max_begun: evaluations that have begun and not finished: each is a thread and, compiled, a binary in memory.
        max_answers: answers that are kept; those that nobody asked for longest are forgotten first.
        deadline_s: what an evaluation may take, see above.
        unwanted_s: what it may still take once nobody asks for it any more, before the evaluator is replaced; None for
            as long as any other.
        keep: called with each evaluation and its feedback before clients hear of it, from several threads.
    """

    def __init__(
        self,
        open_evaluator: Callable[[], OwningEvaluator],
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        takes_keys: bool = False,
        max_queued: int = MAX_QUEUED,
        max_begun: int = MAX_BEGUN,
        max_answers: int = MAX_ANSWERS,
        deadline_s: float = DEADLINE_S,
        unwanted_s: float | None = None,
        keep: Callable[[Evaluation, Feedback], None] | None = None,
    ) -> None:
        self._open_evaluator, self._device = open_evaluator, device
        self._max_queued, self._max_begun, self._max_answers = max_queued, max_begun, max_answers
        self._deadline_s, self._unwanted_s, self._keep = deadline_s, unwanted_s, keep
        self._takes_keys = takes_keys
        self._lock = threading.RLock()
        self._clocks_changed = threading.Condition(self._lock)
        self._one_closed = threading.Condition(self._lock)
        self._pausing = threading.Lock()
        self._evaluator: OwningEvaluator | None = None
        self._closing = 0  # evaluators that are being closed
        self._queue: deque[Evaluation] = deque()
        self._begun: set[Evaluation] = set()
        self._answered: OrderedDict[str, Evaluation] = OrderedDict()
        self._by_id: dict[str, Evaluation] = {}
        self._by_key: dict[str, Evaluation] = {}
        self._statistics = Statistics()
        self._active_s = time.monotonic()
        self._paused = self._closed = False
        self._watch = threading.Thread(target=self._watch_clocks, name="pkb-deadlines", daemon=True)
        self._watch.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: EvaluationRequest) -> str:
        """Has a source judged, or joins the evaluation of an equal request; returns the evaluation's id.

        Who brings the key of the inputs asks for a measurement of its own, and joins none.

        Raises:
            ProblemNotFound, ConfigError, SizeError: the request makes no sense here.
            ServiceBusy: too many wait.
            InfrastructureError: there is no evaluator, or the service was closed.
        """
        if request.replay_key is not None and not self._takes_keys:
            raise ConfigError("this service draws the inputs by a key of its own; ask without a replay key")
        problem, source = find_problem(request.problem), request.source
        asked = self._on_my_device(request.config)
        resolved = self._current().resolve(problem, source, asked)
        equal = EvaluationRequest(
            problem=problem.name, source=source, config=resolved.as_asked(), replay_key=request.replay_key
        )
        replay_key, key = None if request.replay_key is None else bytes.fromhex(request.replay_key), equal.key
        with self._lock:
            self._active_s = time.monotonic()
            if replay_key is None and (known := self._by_key.get(key)) is not None:
                known.interest += 1
                self._statistics.joined += 1
                self._use(known)
                return known.id
            if self._closed:
                raise InfrastructureError("this service has been closed")
            if len(self._queue) >= self._max_queued:
                self._statistics.refused += 1
                raise ServiceBusy(f"{len(self._queue)} evaluations wait already, no more are taken; ask again later")
            evaluation = Evaluation(problem, source, asked, resolved, replay_key, key)
            self._by_id[evaluation.id] = evaluation
            if replay_key is None:
                self._by_key[key] = evaluation
            self._queue.append(evaluation)
            self._begin_next()
        return evaluation.id

    def find(self, evaluation_id: str) -> Evaluation:
        """The evaluation of that id.

        Raises:
            EvaluationNotFound: it was given up before it began, or forgotten since.
        """
        with self._lock:
            if (evaluation := self._by_id.get(evaluation_id)) is None:
                raise EvaluationNotFound(f"no evaluation {evaluation_id!r} is known; submit the request again")
            self._use(evaluation)
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
        """
        answer = self.find(evaluation_id).answer
        done, _ = wait_for_any([answer], timeout_s)
        return answer.result() if done else None

    def give_up(self, evaluation_id: str) -> None:
        """Takes back one `submit`. If nobody else asks for the evaluation, it never begins, or ends early.

        Raises:
            EvaluationNotFound: there is no such evaluation.
        """
        evaluation = self.find(evaluation_id)
        with self._lock:
            evaluation.interest -= 1
            if evaluation.interest > 0 or evaluation.answer.done():
                return
            if evaluation in self._queue:
                self._queue.remove(evaluation)
                self._forget(evaluation)
                evaluation.answer.set_exception(EvaluationNotFound(f"evaluation {evaluation_id} was given up"))
            elif evaluation in self._begun:
                evaluation.unwanted_since_s = time.monotonic()
                if self._by_key.get(evaluation.key) is evaluation:
                    del self._by_key[evaluation.key]  # whoever asks again gets an evaluation that goes on to its end
                self._clocks_changed.notify_all()

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to somebody else until `resume`: nothing begins there, while texts are compiled.

        Args:
            timeout_s: how long to wait for what runs; None for as long as it takes.

        Returns:
            Whether nothing runs any more. If not, nothing new begins all the same, unless the pause was ended.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._paused = True
        while True:
            left = PAUSE_STEP_S if until is None else max(0.0, min(PAUSE_STEP_S, until - time.monotonic()))
            with self._pausing:  # so that `resume` is not overtaken by a pause that it ended
                if not self._paused:
                    return False
                if self._is_idle(left):
                    return True
            if until is not None and time.monotonic() >= until:
                return False

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        with self._pausing, self._lock:
            self._paused = False
            if self._evaluator is not None:
                self._evaluator.resume()

    def idle_s(self) -> float:
        """Seconds since anything was asked for, begun or finished; 0 while something waits or runs."""
        with self._lock:
            return 0.0 if self._queue or self._begun else time.monotonic() - self._active_s

    def status(self) -> ServiceStatus:
        """What the service is at, and what it has done."""
        with self._lock:
            states = [evaluation.state for evaluation in (*self._queue, *self._begun)]
            return self._statistics.status(states, paused=self._paused)

    def close(self) -> None:
        """Ends every process; what has not finished is answered as `infrastructure`. Again, it changes nothing."""
        with self._lock:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._begun.update(waiting)
            self._clocks_changed.notify_all()
        self._watch.join()
        for evaluation in waiting:
            self._finish(evaluation, evaluation.lost("the service was closed"))
        self._replace(None, "the service was closed")
        with self._lock:
            self._one_closed.wait_for(lambda: not self._closing)

    def _on_my_device(self, config: EvalConfig) -> EvalConfig:
        if self._device == "auto" or config.device == self._device:
            return config
        if config.device == "auto":
            return config.model_copy(update={"device": self._device})
        raise ConfigError(f"this service judges on device {self._device!r}; the request asks for {config.device!r}")

    def _current(self) -> OwningEvaluator:
        """The evaluator, made if need be.

        Raises:
            InfrastructureError: it cannot be made.
        """
        with self._lock:
            if self._closed:
                raise InfrastructureError("this service has been closed")
            if self._evaluator is None:
                evaluator = self._open_evaluator()
                if self._paused:
                    evaluator.pause(0)
                self._evaluator = evaluator
            return self._evaluator

    def _begin_next(self) -> None:
        """Called with the lock held."""
        while self._queue and len(self._begun) < self._max_begun:
            evaluation = self._queue.popleft()
            evaluation.enter("static")
            self._begun.add(evaluation)
            self._clocks_changed.notify_all()
            # Not a pool: a thread that hangs in an evaluator must not take a place from others, nor keep Python alive.
            threading.Thread(target=self._judge, args=(evaluation,), name="pkb-evaluation", daemon=True).start()

    def _judge(self, evaluation: Evaluation) -> None:
        def report(state: str) -> None:
            with self._lock:
                if evaluation in self._begun:
                    if evaluation.unwanted_since_s is not None:
                        raise _Unwanted
                    evaluation.enter(state)
                    self._clocks_changed.notify_all()

        evaluator: OwningEvaluator | None = None
        try:
            with self._lock:
                evaluator = evaluation.evaluator = self._current()
            answer: Feedback | Exception = evaluator.evaluate(
                evaluation.problem,
                evaluation.source,
                evaluation.config,
                report,
                replay_key=evaluation.replay_key,
            )
        except ConfigError as refused:
            answer = refused
        except _Unwanted:
            answer = EvaluationNotFound(f"evaluation {evaluation.id} was given up")
        except Exception as error:  # whatever it is, clients get an answer
            why = f"{type(error).__name__}: {error}"
            logger.warning("the evaluator is replaced: %s", why, exc_info=not isinstance(error, InfrastructureError))
            if evaluator is not None:
                self._replace(evaluator, why)
            answer = evaluation.lost(why)
        self._finish(evaluation, answer)

    def _finish(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        feedback = answer if isinstance(answer, Feedback) else None
        with self._lock:
            if evaluation not in self._begun:
                return  # answered already, when its evaluator was replaced
            self._begun.remove(evaluation)
            self._active_s = time.monotonic()
            evaluation.enter(FINISHED)
            self._statistics.finish(feedback)
            self._answered[evaluation.id] = evaluation
            judged = feedback is not None and feedback.failure is not Failure.INFRASTRUCTURE
            if not judged and self._by_key.get(evaluation.key) is evaluation:
                del self._by_key[evaluation.key]  # whoever asks again gets another attempt
            while len(self._answered) > self._max_answers:
                self._forget(self._answered.popitem(last=False)[1])
            if not self._closed:
                self._begin_next()
        if feedback is not None:
            if self._keep is not None:
                self._keep(evaluation, feedback)
            evaluation.answer.set_result(feedback)
        elif isinstance(answer, Exception):
            evaluation.answer.set_exception(answer)

    def _replace(self, broken: OwningEvaluator | None, why: str) -> None:
        """Parts with an evaluator, by default the one at work; what it has in hand is lost."""
        with self._lock:
            if broken is None:
                broken = self._evaluator
            elif broken is not self._evaluator:
                return  # another of its evaluations has seen to it
            if broken is None:
                return
            self._evaluator = None
            if not self._closed:
                self._statistics.restarts += 1
            lost = [evaluation for evaluation in self._begun if evaluation.evaluator is broken]
            self._closing += 1
        for evaluation in lost:
            self._finish(evaluation, evaluation.lost(f"its evaluator was replaced: {why}"))
        # In the background, as ending what hangs may hang.
        threading.Thread(target=self._part_with, args=(broken,), name="pkb-closing", daemon=True).start()

    def _part_with(self, evaluator: OwningEvaluator) -> None:
        try:
            evaluator.close()
        except Exception:
            logger.exception("an evaluator could not be closed")
        with self._lock:
            self._closing -= 1
            self._one_closed.notify_all()

    def _watch_clocks(self) -> None:
        """Replaces the evaluator when one of its evaluations has had its time."""
        while True:
            with self._lock:
                clocks = [(left, each) for each in self._begun if (left := self._left_s(each)) is not None]
                soonest, overdue = min(clocks, key=lambda clock: clock[0], default=(None, None))
                if self._closed:
                    return
                if overdue is None or soonest is None or soonest > 0:
                    self._clocks_changed.wait(soonest)
                    continue
                broken, stage = overdue.evaluator, overdue.state
            why = f"an evaluation outlasted its {self._deadline_s:g} s, at: {stage}"
            if overdue.unwanted_since_s is not None:
                why = f"an evaluation that was given up goes on, at: {stage}"
            logger.warning("%s; the evaluator is replaced", why)
            if broken is not None:
                self._replace(broken, why)
            self._finish(overdue, overdue.lost(why))

    def _left_s(self, evaluation: Evaluation) -> float | None:
        return evaluation.left_s(self._deadline_s, self._unwanted_s)

    def _is_idle(self, timeout_s: float) -> bool:
        """Pauses the evaluator of this moment; whether nothing runs any more, of former ones neither."""
        until = time.monotonic() + timeout_s
        with self._lock:
            evaluator = self._evaluator
        if evaluator is not None and not evaluator.pause(timeout_s):
            return False
        with self._lock:  # an evaluator that was opened meanwhile was paused at once
            return self._one_closed.wait_for(lambda: not self._closing, max(0.0, until - time.monotonic()))

    def _use(self, evaluation: Evaluation) -> None:
        """Called with the lock held: an answer that is asked for is kept longer."""
        if evaluation.id in self._answered:
            self._answered.move_to_end(evaluation.id)

    def _forget(self, evaluation: Evaluation) -> None:
        """Called with the lock held."""
        del self._by_id[evaluation.id]
        if self._by_key.get(evaluation.key) is evaluation:
            del self._by_key[evaluation.key]
