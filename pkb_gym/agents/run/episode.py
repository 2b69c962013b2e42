"""Plays one episode: the agent replies, the environment judges, every turn is recorded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import gymnasium as gym

import pkb_gym  # noqa: F401  # registers the environments
from pkb_gym.agents.protocol import AgentProvider, AgentTask, Message, Reply
from pkb_gym.agents.run.episode_evaluator import EpisodeEvaluator
from pkb_gym.agents.run.identity import RunIdentity
from pkb_gym.agents.run.prompts import system_text, unread_text
from pkb_gym.agents.run.results import Turns, was_judged
from pkb_gym.agents.submissions import read_submission
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt import Attempt, ChatMessage
from pkb_gym.envs.attempts import judged_attempt
from pkb_gym.envs.env import PKBEnv
from pkb_gym.envs.episode import Turn
from pkb_gym.envs.text.brief import brief_task
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.empty_value import empty_value


class EpisodeStatus(StrEnum):
    """Why an episode ended."""

    COMPLETE = "complete"
    """All its turns were played, its best no longer improved, or the agent ended it."""
    STOPPED = "stopped"
    """The run may not go on; resumed, the episode does."""
    NOT_JUDGED = "not judged"
    """The evaluator failed; resumed, the submission is judged again."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode that a run is made of.

    Attributes:
        problem: to be solved.
        sample: number of the episode among those on the same problem.
    """

    problem: Problem
    sample: int

    def seed(self, run_seed: int) -> int:
        """Of inputs and agent: differs between episodes, and is the same whenever the run is repeated."""
        digest = hashlib.sha256(f"{run_seed} {self.problem.name} {self.sample}".encode()).digest()
        return int.from_bytes(digest[:4], "big") // 2


@dataclass(frozen=True)
class EpisodePlayer:
    """Plays the episodes of a run.

    Attributes:
        run: all that the results depend on.
        provider: of the agents.
        evaluator: that all episodes share.
        may_go_on: asked before each turn that costs something.
        record: called with each attempt, as it comes.
    """

    run: RunIdentity
    provider: AgentProvider
    evaluator: Evaluator
    may_go_on: Callable[[], bool]
    record: Callable[[Attempt], None]

    def play(self, plan: EpisodePlan, earlier: Turns) -> EpisodeStatus:
        """Plays an episode from where its records end.

        Args:
            plan: the episode.
            earlier: turns of earlier calls; what was judged is neither asked nor judged again.

        Raises:
            NotCovered: the agent has nothing to offer for the problem.
            AgentError: the agent failed.
            ConfigError: the agent or the evaluator cannot do it at all.
        """
        return _Conversation(self, plan, earlier).play()


class _Conversation:
    """One episode as it is played."""

    def __init__(self, player: EpisodePlayer, plan: EpisodePlan, earlier: Turns) -> None:
        self._player, self._plan, self._earlier = player, plan, earlier
        judged = [attempt for _, attempt in sorted(earlier.items()) if attempt.source is not None]
        feedback = {place: a.feedback for place, a in enumerate(judged) if was_judged(a) and a.feedback is not None}
        self._evaluator = EpisodeEvaluator(player.evaluator, feedback)
        run, requested, seed = player.run, player.run.requested, plan.seed(player.run.seed)
        self._env = gym.make(
            f"PKB/{plan.problem.name}-v0",
            max_episode_steps=run.turns,
            disable_env_checker=True,
            evaluator=self._evaluator,
            reward=run.reward,
            **{name: getattr(requested, name) for name in ENV_ARGUMENTS},
        )
        self._bare = cast(PKBEnv, self._env.unwrapped)
        observation, _ = self._env.reset(seed=seed)
        brief = run.style == "brief"
        task = brief_task(plan.problem, self._bare.config) if brief else str(observation["task"])
        self._messages = [Message("system", system_text(run.style, run.turns)), Message("user", task)]
        self._read = 0
        """Messages that earlier turns have recorded."""
        self._agent = player.provider.begin(AgentTask(plan.problem, self._bare.config, plan.sample, seed))
        self._empty_value = empty_value(find_reward(run.reward))

    def play(self) -> EpisodeStatus:
        try:
            best, since_best = self._bare.episode.best_value, 0
            for number in range(self._player.run.turns):
                if self._player.run.plateau is not None and since_best >= self._player.run.plateau:
                    break
                status = self._play_turn(number)
                if status is not None:
                    return status
                now = self._bare.episode.best_value
                since_best = 0 if now is not None and (best is None or now > best) else since_best + 1
                best = now
            return EpisodeStatus.COMPLETE
        finally:
            self._env.close()

    def _play_turn(self, number: int) -> EpisodeStatus | None:
        """One reply and what comes of it; None where the episode goes on."""
        earlier = self._earlier.get(number)
        stands = earlier is not None and was_judged(earlier)
        if not stands and not self._player.may_go_on():
            return EpisodeStatus.STOPPED
        reply_s = None
        if earlier is None:
            began = time.monotonic()
            reply = self._agent.act(tuple(self._messages))
            reply_s = time.monotonic() - began
            if reply is None and number > 0:
                return EpisodeStatus.COMPLETE
        else:
            reply, reply_s = _reply_of(earlier), earlier.reply_s
        given = reply or Reply("")  # an episode without any attempt would be missing where others are counted
        attempt = self._attempt(number, given, reply_s)
        found = read_submission(given)
        turn = None
        if found.source is None:
            attempt = attempt.model_copy(update={"reward": self._empty_value})
            answer = unread_text(found.taken)
        else:
            turn = self._submit(found.source)
            attempt = judged_attempt(attempt, turn, self._evaluator.duration_s)
            answer = self._bare.episode.message(self._player.run.style)
        if not stands:
            self._player.record(attempt)
        if turn is not None and turn.is_fault:
            return EpisodeStatus.NOT_JUDGED
        self._messages.append(Message("assistant", given.content, submission=given.submission))
        self._read = len(self._messages)
        self._messages.append(Message("user" if given.submission is None else "tool", answer, turn=turn))
        return EpisodeStatus.COMPLETE if reply is None else None

    def _submit(self, source: str) -> Turn:
        self._evaluator.duration_s = None  # of a source that was submitted before, nothing is evaluated
        try:
            self._env.step(source)
        except InfrastructureError:
            self._bare.episode.record(source, None)
        return self._bare.episode.turns[-1]

    def _attempt(self, number: int, reply: Reply, reply_s: float | None) -> Attempt:
        run = self._player.run
        return Attempt(
            problem=self._plan.problem.name,
            agent=run.agent,
            sample=self._plan.sample,
            turn=number,
            requested=self._bare.request,
            reply=reply.content,
            reasoning=reply.reasoning,
            messages=tuple(ChatMessage(role=m.role, content=m.content) for m in self._messages[self._read :]),
            reward_name=run.reward,
            tokens=reply.tokens,
            cost_usd=reply.cost_usd,
            reply_s=reply_s,
        )


ENV_ARGUMENTS = ("device", "world_size", "ranks_per_gpu", "size", "dtype", "language", "protocol", "until", "timeout_s")
"""Fields of `EvalConfig` that are arguments of an environment."""


def _reply_of(attempt: Attempt) -> Reply:
    """The reply of a recorded attempt; where its text does not hold the source, that was handed to the tool."""
    reply = Reply(attempt.reply or "", attempt.reasoning, None, attempt.tokens, attempt.cost_usd)
    if attempt.source is None or read_submission(reply).source == attempt.source:
        return reply
    return Reply(reply.content, reply.reasoning, attempt.source, reply.tokens, reply.cost_usd)
