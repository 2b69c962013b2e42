"""Configuration: which problems, and how submissions are judged."""

from __future__ import annotations

from typing import Literal

import verifiers.v1 as vf
from pydantic import Field

from pkb_gym.adapters.settings import EpisodeSettings


class KernelTaskConfig(vf.TaskConfig):
    """Settings of the evaluation, under `--env.taskset.task.*`; see `EpisodeSettings`."""

    evaluator: str = "http://127.0.0.1:8900"
    """Url of `pkb serve`; its token is read from PKB_TOKEN."""
    max_turns: int = Field(default=8, ge=1)
    """Submissions of a rollout that are judged."""
    reward: str = "default"
    """Name of a reward of pkb-gym."""
    device: Literal["cpu", "cuda"] = "cuda"
    """Device of the service."""
    world_size: int = 4
    """Ranks."""
    size: str | None = None
    """Name of a size."""
    dtype: str | None = None
    """Floating dtype."""
    language: Literal["auto", "cpp", "cuda", "triton", "python"] | None = None
    """Language of the submissions."""
    style: Literal["full", "standard", "brief"] | None = None
    """Length of the task text."""
    protocol: Literal["robust", "published"] | None = None
    """Inputs, tolerances and timing."""
    until: Literal["compile", "check", "time", "profile"] | None = None
    """Last stage of an evaluation."""
    timeout_s: float | None = None
    """Deadline of a block of calls, in seconds."""

    def episode(self, problem: str) -> EpisodeSettings:
        """The settings of an episode on one problem.

        Raises:
            ConfigError: A setting is unknown, or takes no such value.
        """
        own = set(EpisodeSettings.model_fields) & set(type(self).model_fields)
        return EpisodeSettings.of({**self.model_dump(include=own, exclude_none=True), "split": [problem]})


class KernelTasksetConfig(vf.TasksetConfig):
    """The choice of problems, under `--env.taskset.*`."""

    split: str = "train"
    """"train", "test", "all", a category, or names of problems with commas between them."""
    seed: int = 0
    """Fixes the inputs of every episode."""
    task: KernelTaskConfig = KernelTaskConfig()
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    """The place of the server of `submit`; by default beside the environment worker."""


class SubmitConfig(vf.SharedToolsetConfig):
    """Settings of the server of `submit`."""

    task: KernelTaskConfig = KernelTaskConfig()
