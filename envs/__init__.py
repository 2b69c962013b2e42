"""Gymnasium environments: spaces, task text, environments, vector environments, wrappers, the TRL adapter.

Modules here import `pkb_gym.engine`, `pkb_gym.problems` and `pkb_gym.rewards`. They are loaded on first use, because
`import pkb_gym` registers the environments and must load little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pkb_gym.envs.env import PKBEnv
    from pkb_gym.envs.episode import Episode, Turn
    from pkb_gym.envs.evaluator_registry import add_evaluator
    from pkb_gym.envs.samplers import LearningProgress, Sampler
    from pkb_gym.envs.source_text import SourceText
    from pkb_gym.envs.suite import SuiteEnv
    from pkb_gym.envs.trl import KernelTool, SubmissionTool
    from pkb_gym.envs.vector import PKBVectorEnv, SuiteVectorEnv
    from pkb_gym.envs.wrappers import ChatAction, ChatObservation

__all__ = [
    "ChatAction",
    "ChatObservation",
    "Episode",
    "KernelTool",
    "LearningProgress",
    "PKBEnv",
    "PKBVectorEnv",
    "Sampler",
    "SourceText",
    "SubmissionTool",
    "SuiteEnv",
    "SuiteVectorEnv",
    "Turn",
    "add_evaluator",
]

_HOMES = {
    "ChatAction": "wrappers",
    "ChatObservation": "wrappers",
    "Episode": "episode",
    "KernelTool": "trl",
    "LearningProgress": "samplers",
    "PKBEnv": "env",
    "PKBVectorEnv": "vector",
    "Sampler": "samplers",
    "SourceText": "source_text",
    "SubmissionTool": "trl",
    "SuiteEnv": "suite",
    "SuiteVectorEnv": "vector",
    "Turn": "episode",
    "add_evaluator": "evaluator_registry",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
