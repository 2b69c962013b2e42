"""Registers `PKB/<Name>-v0` for every problem and `PKB/Suite-v0`, without importing any problem.

Importing the catalogue takes long and loads pydantic, so names are read from the text of the problem files; a test
compares them with the catalogue's. Gymnasium finds ids by their exact text and suggests those with similar letters. So
the other spellings of `find_problem` are registered too, as ids that make nothing and say which id is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

PROBLEMS = Path(__file__).parent.parent / "problems"
MAX_EPISODE_STEPS = 8

_DECLARATION = re.compile(r'^PROBLEM = Problem\(\s*name="(\w+)",[^\n]*\s*upstream="(\w+)"', re.MULTILINE)
_HINT = "pkb_gym.envs.registration:refuse_spelling"


@dataclass(frozen=True)
class DeclaredNames:
    """The names of one problem.

    Attributes:
        name: CamelCase, of the environment.
        folder: its snake case.
        upstream: file stem in ParallelKernelBench.
    """

    name: str
    folder: str
    upstream: str

    @property
    def env_id(self) -> str:
        """Of the environment."""
        return f"PKB/{self.name}-v0"

    def other_spellings(self) -> Iterator[str]:
        """Ids that `find_problem` would understand, and lower case, each with the version that is the default."""
        yield f"{self.name}-v0"
        for alias in dict.fromkeys((self.folder, self.upstream, self.name.lower())):
            yield f"{alias}-v0"
            yield f"PKB/{alias}-v0"


def declared_names(folder: Path = PROBLEMS) -> list[DeclaredNames]:
    """What the files `<category>/<problem>/problem.py` declare, sorted by name."""
    texts = ((path.parent.name, path.read_text(encoding="utf-8")) for path in folder.glob("*/*/problem.py"))
    found = [
        DeclaredNames(declared[1], name, declared[2]) for name, text in texts if (declared := _DECLARATION.search(text))
    ]
    return sorted(found, key=lambda names: names.name)


def env_ids() -> list[str]:
    """The ids of all environments: `PKB/Suite-v0`, and one for each problem."""
    return [spec.id for spec in gym.registry.values() if spec.namespace == "PKB" and spec.entry_point != _HINT]


def register_all() -> None:
    """Makes the ids known to Gymnasium; calling it again changes nothing."""
    problems = declared_names()
    for names in problems:
        kwargs = {"problem": names.name}
        _register(names.env_id, "pkb_gym.envs.env:PKBEnv", "pkb_gym.envs.vector:PKBVectorEnv", kwargs)
    _register("PKB/Suite-v0", "pkb_gym.envs.suite:SuiteEnv", "pkb_gym.envs.vector:SuiteVectorEnv", {})
    for names in problems:
        for spelling in names.other_spellings():
            kwargs = {"spelling": spelling, "env_id": names.env_id}
            # `gym.register` compares each new id with all others.
            hint = EnvSpec(spelling, entry_point=_HINT, vector_entry_point=_HINT, kwargs=kwargs)
            gym.registry.setdefault(spelling, hint)


def refuse_spelling(*, spelling: str, env_id: str, **_: object) -> NoReturn:
    """Says which environment is meant; the entry point of all other spellings.

    Raises:
        ConfigError: always.
    """
    from pkb_gym.engine.errors import ConfigError

    raise ConfigError(f"no environment {spelling.removesuffix('-v0')!r}. Did you mean gym.make({env_id!r})?")


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
