"""The submissions of a rollout as data: what the tool server and the task share, and what a trace keeps."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, Field

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.episode import Episode
from pkb_gym.rewards import find_reward
from pkb_verifiers.config import KernelTaskConfig

INFO = "pkb"
"""Key of the submissions in `Trace.info`, from which a stored trace is scored again."""


class EvaluatedSource(BaseModel):
    """One submission."""

    source: str
    """Text of the source."""
    feedback: dict[str, Any] | None
    """The record of its evaluation, as JSON; None where the evaluator raised an error."""


class KernelState(vf.State):
    """The state of one rollout; the tool server keeps nothing between calls."""

    problem: str = ""
    """Name of the problem."""
    seed: int = 0
    """Fixes the inputs."""
    attempts: list[EvaluatedSource] = Field(default_factory=list)
    """Submissions so far, in order."""
    is_over: bool = False
    """Whether no further submission is judged."""


def judged(attempts: list[EvaluatedSource]) -> list[tuple[str, Feedback | None]]:
    """Source and record of each attempt."""
    return [
        (each.source, None if each.feedback is None else Feedback.model_validate(each.feedback)) for each in attempts
    ]


def episode_of(trace: vf.Trace, config: KernelTaskConfig) -> Episode:
    """The episode of a trace: of its state, or, where it was stored and read again, of its info."""
    stored = trace.info.get(INFO)
    attempts = trace.state.attempts if stored is None else [EvaluatedSource.model_validate(each) for each in stored]
    episode = Episode(find_reward(config.reward), config.max_turns)
    for source, feedback in judged(attempts):
        episode.record(source, feedback)
    return episode
