"""Plays one episode of a program in a workspace: it evaluates as it likes, and every evaluation is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from pkb_gym.agents.protocol import AgentError
from pkb_gym.agents.run.budget import Usage
from pkb_gym.agents.run.episode import EpisodePlan, EpisodeStatus, begin_episode
from pkb_gym.agents.run.identity import RunIdentity
from pkb_gym.agents.run.results import Turns, was_judged
from pkb_gym.agents.workspace.client import NOT_JUDGED, REFUSED
from pkb_gym.agents.workspace.folder import SUFFIXES, WorkspaceBudget, fill_workspace
from pkb_gym.agents.workspace.process import WorkspaceProcess
from pkb_gym.agents.workspace.provider import WorkspaceProvider
from pkb_gym.agents.workspace.requests import Call, Status, WorkspaceRequest, WorkspaceSocket, workspace_socket
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.attempt import Attempt, ChatMessage, TokenCounts, WorkspaceCall
from pkb_gym.engine.records.config import EvalConfig, Until
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.ownership import TemporaryFolder
from pkb_gym.engine.support.printable import printable
from pkb_gym.envs.attempts import judged_attempt
from pkb_gym.envs.equal_sources import code_of
from pkb_gym.envs.loop import EpisodeLoop, TurnResult
from pkb_gym.envs.text.task import LANGUAGES
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.empty_value import empty_value
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right

POLL_S = 0.1
GRACE_S = 30.0
"""Time in seconds in which a program may end by itself, and report its tokens, once it has submitted."""

TRIES = 2
"""Evaluations of a source while the evaluator fails."""

MAX_REASON_CHARS = 500

STAGES: tuple[Until, ...] = get_args(Until)

Ended: TypeAlias = Literal["submitted", "exited", "minutes", "tokens"]


@dataclass(frozen=True)
class WorkspacePlayer:
    """Plays the episodes of a run.

    Attributes:
        run: Identity of the run: all that its results depend on.
        provider: Provider of the program.
        evaluator: Evaluator that all episodes share.
        may_go_on: Function that is asked whether the run goes on.
        record: Function that is called with each attempt.
    """

    run: RunIdentity
    provider: WorkspaceProvider
    evaluator: Evaluator
    may_go_on: Callable[[], bool]
    record: Callable[[Attempt], None]

    def play(self, plan: EpisodePlan, earlier: Turns) -> EpisodeStatus:
        """Plays an episode from where its records end: the program begins anew, with what is left of its budget.

        Args:
            plan: Plan of the episode.
            earlier: Turns of earlier calls, by number; those that were not judged are judged again.

        Raises:
            AgentError: The program failed.
            ConfigError: The evaluator can play no such episode.
        """
        return _Trajectory(self, plan, earlier).play()


class _NotJudged(Exception):
    """Raised when the evaluator failed."""


class _Stopped(Exception):
    """Raised when the run may not go on."""


@dataclass
class _Session:
    """One call's program: its process, its socket, its times in seconds."""

    process: WorkspaceProcess
    socket: WorkspaceSocket
    began: float
    evaluating_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began - self.evaluating_s


class _Trajectory:
    """One episode as it is played."""

    def __init__(self, player: WorkspacePlayer, plan: EpisodePlan, earlier: Turns) -> None:
        self._player, self._plan = player, plan
        run = player.run
        self._env, self._task = begin_episode(run, plan, player.evaluator)
        self._loop = EpisodeLoop(self._env.episode, run.style, plateau=run.plateau)
        self._attempts: list[Attempt] = []
        self._earlier = [attempt for _, attempt in sorted(earlier.items())]
        self._before = Usage.of(*self._earlier)
        """Usage of earlier calls."""
        self._before_s = sum(attempt.reply_s or 0.0 for attempt in self._earlier)
        """Time of the program in earlier calls."""
        self._recorded_s = self._recorded_usd = 0.0
        self._recorded_tokens = TokenCounts(prompt=0, completion=0)
        """What attempts have recorded of this call's program."""
        self._messages: tuple[ChatMessage, ...] = ()

    def play(self) -> EpisodeStatus:
        try:
            self._judge_earlier()
            if self._attempts and self._attempts[-1].is_submission:
                return EpisodeStatus.COMPLETE
            self._run_program()
        except _NotJudged:
            return EpisodeStatus.NOT_JUDGED
        except _Stopped:
            return EpisodeStatus.STOPPED
        return EpisodeStatus.COMPLETE

    def _judge_earlier(self) -> None:
        """Takes over what earlier calls recorded, and judges what they could not."""
        for attempt in self._earlier:
            if attempt.source is None:
                self._attempts.append(attempt)
            elif was_judged(attempt):
                self._loop.judged(attempt.source, attempt.feedback)
                self._attempts.append(attempt)
            else:
                self._record(attempt, attempt.source, *self._evaluate(attempt.source, attempt.requested))

    def _run_program(self) -> None:
        player = self._player
        with TemporaryFolder() as owned, ExitStack() as opened:
            workspace = owned.path / "workspace"
            workspace.mkdir(mode=0o700)
            device, language = self._env.config.device, player.run.requested.language
            languages = LANGUAGES[device] if language == "auto" else (language,)
            evaluated = [attempt for attempt in self._attempts if attempt.source is not None]
            text = fill_workspace(
                workspace, self._plan.problem, self._task, languages, self._budget_left(0.0), evaluated
            )
            self._messages = (ChatMessage(role="user", content=text),)
            socket = opened.enter_context(workspace_socket(workspace))
            variables = {"PKB_PROBLEM": self._plan.problem.name, "PKB_SAMPLE": str(self._plan.sample)}
            solution = f"solution{SUFFIXES[languages[0]]}"
            process = player.provider.start(workspace, owned.path / "output", solution, variables)
            opened.callback(player.provider.end, process)
            session = _Session(process, socket, time.monotonic())
            ended, submitted = self._follow(session)
            if ended == "submitted":
                _await_exit(session)
            player.provider.end(process)
            self._submit(session, ended, submitted)

    def _follow(self, session: _Session) -> tuple[Ended, WorkspaceRequest | None]:
        """Answers the program until it submits or ends.

        Returns:
            Why it ended, and the submission; None where it made none.

        Raises:
            AgentError: The program failed.
        """
        while True:
            if not self._player.may_go_on():
                raise _Stopped
            session.process.read_output()
            if (limit := self._limit_reached(session)) is not None:
                return limit, None
            if (status := session.process.exit_status) is not None:
                if status == 0:
                    return "exited", None
                words = printable(" ".join(session.process.take_transcript()[-MAX_REASON_CHARS:].split()))
                raise AgentError(f"{self._player.provider.command} ended with status {status}: {words}")
            call = session.socket.next_call(POLL_S)
            if call is None:
                continue
            with closing(call):
                if call.request.action == "submit":
                    call.reply(0, f"{call.request.file} is submitted, and the episode ends.")
                    return "submitted", call.request
                self._answer(session, call)

    def _limit_reached(self, session: _Session) -> Literal["minutes", "tokens"] | None:
        left = self._budget_left(session.elapsed_s)
        if left.minutes <= 0:
            return "minutes"
        used = session.process.tokens
        if left.tokens is not None and used is not None and used.prompt + used.completion >= left.tokens:
            return "tokens"
        return None

    def _budget_left(self, elapsed_s: float) -> WorkspaceBudget:
        """The budget without earlier calls, the evaluations of this one, and a time of its program in seconds."""
        options = self._player.provider.options
        return WorkspaceBudget(
            evaluations=self._player.run.turns - sum(attempt.is_trial for attempt in self._attempts),
            minutes=options.minutes - (self._before_s + elapsed_s) / 60,
            tokens=None if options.tokens is None else options.tokens - self._before.tokens,
        )

    def _answer(self, session: _Session, call: Call) -> None:
        """Judges a source for the program."""
        request = call.request
        if self._loop.is_over or self._budget_left(0.0).evaluations <= 0:
            call.reply(REFUSED, "no evaluations are left; ./submit FILE names your answer and ends the episode")
            return
        began = time.monotonic()
        try:
            requested = self._requested(request)
            feedback, duration_s = self._evaluate(request.source, requested)
        except ConfigError as error:
            call.reply(REFUSED, str(error))
            return
        finally:
            session.evaluating_s += time.monotonic() - began
        place = WorkspaceCall(action="evaluate", file=request.file, elapsed_s=self._before_s + session.elapsed_s)
        try:
            result = self._record(self._attempt(session, place, requested), request.source, feedback, duration_s)
        except _NotJudged:
            call.reply(NOT_JUDGED, "the evaluator failed, and the episode ends here; it may be taken up again")
            raise
        assert feedback is not None, "what was not judged has raised"
        left = self._budget_left(session.elapsed_s)
        text = f"{result.text}\n{left.evaluations} evaluations and {left.minutes:.0f} minutes are left."
        call.reply(_status(feedback), text, feedback)

    def _submit(self, session: _Session, ended: Ended, submitted: WorkspaceRequest | None) -> None:
        """Judges the submission, or the best source so far, as the run does, and records it."""
        file, source = self._best() if submitted is None else (submitted.file, submitted.source)
        place = WorkspaceCall(
            action="end" if submitted is None else "submit",
            file=file,
            elapsed_s=self._before_s + session.elapsed_s,
            ended=ended,
        )
        attempt = self._attempt(session, place, self._env.request)
        if source is None:
            nothing = empty_value(find_reward(self._player.run.reward))
            self._player.record(attempt.model_copy(update={"reward": nothing}))
            return
        self._record(attempt, source, *self._evaluate(source, attempt.requested))

    def _best(self) -> tuple[str | None, str | None]:
        """File and source of the best evaluation, the last of equal ones; None where nothing was evaluated."""
        best = max((attempt for attempt in self._attempts if attempt.source is not None), key=_rank, default=None)
        if best is None:
            return None, None
        return None if best.workspace is None else best.workspace.file, best.source

    def _requested(self, request: WorkspaceRequest) -> EvalConfig:
        """The configuration that a program asks for.

        Raises:
            ConfigError: The run stops before that stage.
        """
        of_run = self._env.config
        changes: dict[str, str] = {}
        if request.until is not None and request.until != of_run.until:
            if STAGES.index(request.until) > STAGES.index(of_run.until):
                raise ConfigError(f"sources of this run are judged until {of_run.until!r}, not {request.until!r}")
            changes["until"] = request.until
        if request.race is not None and request.race != of_run.race_check:
            changes["race_check"] = request.race
        return self._env.request.model_copy(update=changes)

    def _evaluate(self, source: str, requested: EvalConfig) -> tuple[Feedback | None, float | None]:
        """The feedback on a source, and the wall time of its evaluation in seconds; None where it was known.

        Raises:
            ConfigError: Nothing can be judged so.
        """
        code = code_of(source)
        for attempt in self._attempts:  # timed anew, an equal source would be paid for noise
            at_this_turn = attempt.requested.model_copy(update={"turn": requested.turn})
            if attempt.source is not None and at_this_turn == requested and code_of(attempt.source) == code:
                return attempt.feedback, None
        began, feedback = time.monotonic(), None
        for _ in range(TRIES):
            if not self._player.may_go_on():
                raise _Stopped
            try:
                feedback = self._player.evaluator.evaluate(self._plan.problem, source, requested)
            except InfrastructureError:
                continue
            if feedback.failure is not Failure.INFRASTRUCTURE:
                break
        return feedback, time.monotonic() - began

    def _record(self, attempt: Attempt, source: str, feedback: Feedback | None, duration_s: float | None) -> TurnResult:
        """Records a judged source.

        Raises:
            _NotJudged: The evaluator failed.
        """
        result = self._loop.judged(source, feedback)
        assert result.turn is not None, "a source that was judged is a turn"
        attempt = judged_attempt(attempt, result.turn, duration_s)
        self._player.record(attempt)
        self._attempts.append(attempt)
        if result.turn.is_fault:
            raise _NotJudged
        return result

    def _attempt(self, session: _Session, place: WorkspaceCall, requested: EvalConfig) -> Attempt:
        """The attempt at this place, with what the program has printed and used since the last one."""
        run, process = self._player.run, session.process
        transcript = process.take_transcript()
        tokens = cost_usd = None
        if process.tokens is not None:
            tokens = _difference(process.tokens, self._recorded_tokens)
            self._recorded_tokens = process.tokens
        if process.cost_usd is not None:
            cost_usd = max(0.0, process.cost_usd - self._recorded_usd)
            self._recorded_usd = process.cost_usd
        elapsed_s, before_s = session.elapsed_s, self._recorded_s
        self._recorded_s = elapsed_s
        messages, self._messages = self._messages, ()
        return Attempt(
            problem=self._plan.problem.name,
            agent=run.agent,
            sample=self._plan.sample,
            turn=len(self._attempts),
            workspace=place,
            requested=requested,
            reply=transcript,
            messages=messages,
            reward_name=run.reward,
            tokens=tokens,
            cost_usd=cost_usd,
            reply_s=max(0.0, elapsed_s - before_s),
        )


def _await_exit(session: _Session) -> None:
    """Waits until a program that has submitted ends, for a while."""
    deadline = time.monotonic() + GRACE_S
    while session.process.exit_status is None and time.monotonic() < deadline:
        call = session.socket.next_call(POLL_S)
        if call is not None:
            with closing(call):
                call.reply(REFUSED, "the episode has ended with your submission")


def _rank(attempt: Attempt) -> tuple[bool, float, float, int]:
    """The order of sources: right before wrong, then the fastest, then the best reward, then the last."""
    found = attempt.feedback
    right, speedup = (False, 0.0) if found is None else (is_right(found), found.speedup or 0.0)
    return right, speedup, float("-inf") if attempt.reward is None else attempt.reward, attempt.turn


def _status(feedback: Feedback) -> Status:
    """The exit status of `./evaluate`."""
    if feedback.failure is None:
        return 0
    return NOT_JUDGED if is_infrastructure_failure(feedback) else 1


def _difference(now: TokenCounts, before: TokenCounts) -> TokenCounts:
    """Tokens since; none are negative where a program reports less than before."""
    return TokenCounts(prompt=max(0, now.prompt - before.prompt), completion=max(0, now.completion - before.completion))
