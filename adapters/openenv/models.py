"""Action, observation and state."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from openenv.core.env_server.types import Action, Observation, State


class KernelAction(Action):
    """One submission."""

    source: str = Field(description="The complete source file of the kernel, in a language that the task accepts")


class KernelObservation(Observation):
    """The task, or the reply to a submission. Its reward is the increase of the best value: rewards of steps add up.

    A submission that the evaluator could not judge has the reward None, and ends the episode.
    """

    text: str = Field(description="Message to the model: the task, or the feedback on the last submission")
    problem: str = Field(description="Name of the problem")
    turn: int = Field(default=0, description="Submissions so far")
    turns_left: int | None = Field(default=None, description="Submissions that are still judged")
    failure: str | None = Field(default=None, description="Why the last submission failed; None where it passed")
    value: float | None = Field(default=None, description="Value of the last submission; None where it was not judged")
    speedup: float | None = Field(default=None, description="Of the last submission over the baseline, where timed")
    feedback: dict[str, Any] | None = Field(default=None, description="The whole record of the evaluation, as JSON")


class PKBState(State):
    """The state of an episode."""

    problem: str = Field(default="", description="Name of the problem; empty before the first reset")
    best_turn: int = Field(default=0, description="Number of the best submission; 0 before the first valid one")
    best_value: float | None = Field(default=None, description="Its value")
    best_source: str = Field(default="", description="Its text")
    is_over: bool = Field(default=False, description="Whether no further submission is judged")
