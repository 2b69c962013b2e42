"""Registers `PKB/<Name>-v0` for every problem and `PKB/Suite-v0`, without importing any problem.

Importing the catalogue takes long and loads pydantic, so names are read from the text of the problem files; a test
compares them with the catalogue's.
"""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym

PROBLEMS = Path(__file__).parent.parent / "problems"
MAX_EPISODE_STEPS = 8

_NAME = re.compile(r'^PROBLEM = Problem\(\s*name="(\w+)"', re.MULTILINE)


def problem_names(folder: Path = PROBLEMS) -> list[str]:
    """The names that the files `<category>/<problem>/problem.py` declare, sorted."""
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("*/*/problem.py"))
    return sorted(found.group(1) for text in texts if (found := _NAME.search(text)))


def register_all() -> None:
    """Makes the ids known to Gymnasium; calling it again changes nothing."""
    for name in problem_names():
        _register(f"PKB/{name}-v0", "pkb_gym.envs.env:PKBEnv", "pkb_gym.envs.vector:PKBVectorEnv", {"problem": name})
    _register("PKB/Suite-v0", "pkb_gym.envs.suite:SuiteEnv", "pkb_gym.envs.vector:SuiteVectorEnv", {})


def _register(env_id: str, entry_point: str, vector_entry_point: str, kwargs: dict[str, str]) -> None:
    if env_id in gym.registry:
        return
    gym.register(
        env_id,
        entry_point=entry_point,
        vector_entry_point=vector_entry_point,
        nondeterministic=True,  # times differ between runs
        max_episode_steps=MAX_EPISODE_STEPS,
        kwargs=kwargs,
    )
