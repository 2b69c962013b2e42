"""Plays one episode: the agent replies, the environment judges, every turn is recorded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from pkb_gym.agents.protocol import AgentProvider, AgentTask, Message, Reply, RequestRefused
from pkb_gym.agents.run.identity import RunIdentity
from pkb_gym.agents.run.prompts import system_text, unread_text
from pkb_gym.agents.run.results import Turns, was_judged
from pkb_gym.agents.submissions import read_submission
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt import Attempt, ChatMessage
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.attempts import judged_attempt
from pkb_gym.envs.env import PKBEnv
from pkb_gym.envs.loop import EpisodeLoop
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.empty_value import empty_value

FILTERED = "the endpoint's content filter ended the reply"

_FILTERS = frozenset({"content_filter", "safety", "refusal"})


class EpisodeStatus(StrEnum):
    """Why an episode ended."""

    COMPLETE = "complete"
    """All its turns were played, its best no longer improved, or the agent ended it."""
    STOPPED = "stopped"
    """The run may not go on; resumed, the episode does."""
    NOT_JUDGED = "not judged"
    """The evaluator failed; resumed, the submission is judged again."""
    REFUSED = "refused"
    """The endpoint refused the first request; resumed, it is sent again. A later refusal completes the episode."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode that a run is made of.

    Attributes:
        problem: Problem to solve.
        sample: Number of the episode among those on the same problem, from 0.
    """

    problem: Problem
    sample: int

    def seed(self, run_seed: int) -> int:
        """The seed of inputs and agent, which differs between episodes and is the same in repeated runs."""
        digest = hashlib.sha256(f"{run_seed} {self.problem.name} {self.sample}".encode()).digest()
        return int.from_bytes(digest[:4], "big") // 2


@dataclass(frozen=True)
class EpisodePlayer:
    """Plays the episodes of a run.

    Attributes:
        run: Identity of the run: all that its results depend on.
        provider: Provider of the agents.
        evaluator: Evaluator that all episodes share.
        may_go_on: Function that is asked before each turn that costs something.
        record: Function that is called with each attempt.
    """

    run: RunIdentity
    provider: AgentProvider
    evaluator: Evaluator
    may_go_on: Callable[[], bool]
    record: Callable[[Attempt], None]

    def play(self, plan: EpisodePlan, earlier: Turns) -> EpisodeStatus:
        """Plays an episode from where its records end.

        Args:
            plan: Plan of the episode.
            earlier: Turns of earlier calls, by number; those that were judged are neither asked for nor judged again.

        Raises:
            NotCovered: The agent has nothing to offer for the problem.
            AgentError: The agent failed.
            ConfigError: The agent or the evaluator can play no such episode.
        """
        return _Conversation(self, plan, earlier).play()


class _Conversation:
    """One episode as it is played."""

    def __init__(self, player: EpisodePlayer, plan: EpisodePlan, earlier: Turns) -> None:
        self._player, self._plan, self._earlier = player, plan, earlier
        submitted = [attempt for _, attempt in sorted(earlier.items()) if attempt.source is not None]
        self._feedback = {place: attempt.feedback for place, attempt in enumerate(submitted) if was_judged(attempt)}
        """Feedback of earlier calls, by number of the submission."""
        run, seed = player.run, plan.seed(player.run.seed)
        self._env, task = begin_episode(run, plan, player.evaluator)
        self._loop = EpisodeLoop(self._env.episode, run.style, run.turns, run.plateau)
        self._messages = [
            Message("system", system_text(run.style, run.turns)),
            Message("user", task),
        ]
        self._reference = reference_source(plan.problem)
        self._read = 0
        """Messages that earlier turns have recorded."""
        self._agent = player.provider.begin(AgentTask(plan.problem, self._env.config, plan.sample, seed))
        self._empty_value = empty_value(find_reward(run.reward))
        self._duration_s: float | None = None
        """Wall time of the last evaluation in seconds; None where the feedback is an earlier one."""

    def play(self) -> EpisodeStatus:
        number = 0
        while not self._loop.is_over:
            status = self._play_turn(number)
            if status is not None:
                return status
            number += 1
        return EpisodeStatus.COMPLETE

    def _play_turn(self, number: int) -> EpisodeStatus | None:
        """One reply and its result; None where the episode goes on."""
        earlier = self._earlier.get(number)
        if earlier is not None and earlier.refusal is not None:
            if number > 0:
                return EpisodeStatus.COMPLETE
            earlier = None
        stands = earlier is not None and was_judged(earlier)
        if not stands and not self._player.may_go_on():
            return EpisodeStatus.STOPPED
        reply_s = None
        if earlier is None:
            began = time.monotonic()
            try:
                reply = self._agent.act(tuple(self._messages))
            except RequestRefused as refused:
                return self._end_refused(self._attempt(number, None, time.monotonic() - began), str(refused))
            reply_s = time.monotonic() - began
            if reply is None and number > 0:
                return EpisodeStatus.COMPLETE
        else:
            reply, reply_s = self._reply_of(earlier), earlier.reply_s
        given = reply or Reply("")  # an episode without any attempt would be missing where others are counted
        attempt = self._attempt(number, given, reply_s)
        found = read_submission(given, self._reference)
        if found.source is None and _is_filtered(given.finish_reason):
            return self._end_refused(attempt, FILTERED)
        if found.source is None:
            attempt = attempt.model_copy(update={"reward": self._empty_value})
            result = self._loop.not_submitted(unread_text(found.taken))
        else:
            self._duration_s = None
            result = self._loop.submit(found.source, self._evaluate)
            assert result.turn is not None, "an episode that is over takes no reply"
            attempt = judged_attempt(attempt, result.turn, self._duration_s)
        if not stands:
            self._player.record(attempt)
        if result.turn is not None and result.turn.is_fault:
            return EpisodeStatus.NOT_JUDGED
        self._messages.append(Message("assistant", given.content, submission=given.submission))
        self._read = len(self._messages)
        self._messages.append(Message("user" if given.submission is None else "tool", result.text, turn=result.turn))
        return EpisodeStatus.COMPLETE if reply is None else None

    def _end_refused(self, attempt: Attempt, words: str) -> EpisodeStatus:
        """Records that the endpoint refused to reply, which is no answer of the model."""
        is_first = attempt.turn == 0
        self._player.record(
            attempt.model_copy(update={"refusal": words, "reward": None if is_first else self._empty_value})
        )
        return EpisodeStatus.REFUSED if is_first else EpisodeStatus.COMPLETE

    def _reply_of(self, attempt: Attempt) -> Reply:
        """The reply of a recorded attempt; where its text does not hold the source, that was handed to the tool."""
        reply = Reply(
            attempt.reply or "",
            attempt.reasoning,
            tokens=attempt.tokens,
            cost_usd=attempt.cost_usd,
            finish_reason=attempt.finish_reason,
        )
        if attempt.source is None or read_submission(reply, self._reference).source == attempt.source:
            return reply
        return replace(reply, submission=attempt.source)

    def _evaluate(self, source: str) -> Feedback:
        """Has a source judged, unless an earlier call did."""
        if (feedback := self._feedback.get(len(self._env.episode.turns))) is not None:
            return feedback
        began = time.monotonic()
        try:
            return self._env.evaluate(source)
        finally:
            self._duration_s = time.monotonic() - began

    def _attempt(self, number: int, given: Reply | None, reply_s: float | None) -> Attempt:
        run, reply = self._player.run, given or Reply("")
        return Attempt(
            problem=self._plan.problem.name,
            agent=run.agent,
            sample=self._plan.sample,
            turn=number,
            requested=self._env.request,
            reply=None if given is None else reply.content,
            reasoning=reply.reasoning,
            finish_reason=reply.finish_reason,
            messages=tuple(ChatMessage(role=m.role, content=m.content) for m in self._messages[self._read :]),
            reward_name=run.reward,
            tokens=reply.tokens,
            cost_usd=reply.cost_usd,
            reply_s=reply_s,
        )


def begin_episode(run: RunIdentity, plan: EpisodePlan, evaluator: Evaluator) -> tuple[PKBEnv, str]:
    """The environment of an episode, and its task text."""
    arguments = {name: getattr(run.requested, name) for name in ENV_ARGUMENTS}
    env = PKBEnv(plan.problem.name, evaluator=evaluator, reward=run.reward, style=run.style, **arguments)
    observation, _ = env.reset(seed=plan.seed(run.seed))
    return env, str(observation["task"])


ENV_ARGUMENTS = ("device", "world_size", "ranks_per_gpu", "size", "dtype", "language", "protocol", "until", "timeout_s")
"""Fields of `EvalConfig` that are arguments of an environment."""


def _is_filtered(finish_reason: str | None) -> bool:
    """Whether a filter of the endpoint ended a reply, by the words of several servers."""
    return finish_reason is not None and finish_reason.lower() in _FILTERS
