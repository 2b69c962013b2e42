"""Registers `PKB/<Name>-v0` for every problem, `PKB/Suite-v0` and `PKB/Path-v0`, without importing any problem.

`import pkb_gym` registers with a Gymnasium that is imported already. Otherwise a post-import hook registers when it is,
because Gymnasium takes five times as long to import as this package, and since its version 1.0 it reads no entry points
of plugins.

Importing the catalogue takes long, so names are read from the text of the problem files; a test compares them with the
catalogue's. Gymnasium finds ids by their exact text and suggests those with similar letters. So the other spellings of
`find_problem` are registered too, as ids that make nothing and name the id that is meant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from pkb_gym.problems.declared_names import declared_names
from pkb_gym.problems.own_problems import own_folders, register_folder

MAX_EPISODE_STEPS = 8

evaluator_entry_points: dict[str, str] = {}
"""Evaluators that are chosen by an address: entry point by scheme."""

_HINT = "pkb_gym.envs.registration:refuse_spelling"


class _PostImportHook(MetaPathFinder):
    """Finds Gymnasium as the other finders do, and registers the environments after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of Gymnasium, whose loader registers the environments; None for other modules."""
        if fullname != "gymnasium":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._register_after(spec.loader)
        return spec

    def _register_after(self, loader: Loader) -> None:
        # The loader stays the object it is, for those who ask it for source or resources.
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register_all()

        loader.exec_module = execute_and_register  # type: ignore[method-assign]


def register_with_gymnasium() -> None:
    """Registers all environments: now, or as soon as Gymnasium is imported."""
    if "gymnasium" in sys.modules:
        register_all()
    elif not any(isinstance(finder, _PostImportHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportHook())


def env_ids() -> list[str]:
    """The ids of all environments: `PKB/Suite-v0`, `PKB/Path-v0`, and one for each problem."""
    import gymnasium as gym

    return [spec.id for spec in gym.registry.values() if spec.namespace == "PKB" and spec.entry_point != _HINT]


def register_all() -> None:
    """Makes the ids known to Gymnasium; calling it again changes nothing."""
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

    problems = declared_names()
    for names in problems:
        _register_problem(names.env_id, names.name)
    _register_problem("PKB/Path-v0", "")
    for folder in own_folders():
        if folder.name:  # a broken one raises its error when it is made
            _register_problem(f"PKB/{folder.name}-v0", folder.name)
    _register("PKB/Suite-v0", "pkb_gym.envs.suite:SuiteEnv", "pkb_gym.envs.vector:SuiteVectorEnv", {})
    for names in problems:
        for spelling in names.other_spellings():
            kwargs = {"spelling": spelling, "env_id": names.env_id}
            # `gym.register` compares each new id with all others.
            hint = EnvSpec(spelling, entry_point=_HINT, vector_entry_point=_HINT, kwargs=kwargs)
            gym.registry.setdefault(spelling, hint)


def register_problem(path: str | os.PathLike[str]) -> str:
    """Makes a problem outside this package known to this process, by its name; docs/problems.md describes its files.

    Its declaration is loaded when an environment is made. A problem that lies where kernels could read it has to be
    registered before the first evaluation.

    Args:
        path: Folder that holds `problem.py` and `reference.py`.

    Returns:
        The id of its environment, for `gymnasium.make`.

    Raises:
        ConfigError: The folder holds no problem, or its name is taken; the message names both places.
    """
    folder = register_folder(path)
    env_id = f"PKB/{folder.name}-v0"
    if "gymnasium" in sys.modules:  # otherwise `register_all` finds the folder when it is imported
        _register_problem(env_id, folder.name)
    return env_id


def register_evaluator(scheme: str, entry_point: str) -> None:
    """Makes a kind of evaluator known to this process, by the scheme of its addresses.

    Args:
        scheme: First word of its addresses: "ray" in `ray`, `ray?setting=1` and `ray://host:port`.
        entry_point: Class as `"module:name"`, imported on first use. Called with an address, it checks the address,
            raises `ConfigError` for a wrong one, and starts nothing.
    """
    evaluator_entry_points[scheme] = entry_point


def refuse_spelling(*, spelling: str, env_id: str, **_: object) -> NoReturn:
    """Says which environment is meant: the entry point of all other spellings.

    Raises:
        ConfigError: Always.
    """
    from pkb_gym.engine.errors import ConfigError

    raise ConfigError(f"no environment {spelling.removesuffix('-v0')!r}. Did you mean gym.make({env_id!r})?")


def _register_problem(env_id: str, name: str) -> None:
    _register(env_id, "pkb_gym.envs.env:PKBEnv", "pkb_gym.envs.vector:PKBVectorEnv", {"problem": name})


def _register(env_id: str, entry_point: str, vector_entry_point: str, kwargs: dict[str, str]) -> None:
    import gymnasium as gym

    if env_id in gym.registry:
        return
    gym.register(
        env_id,
        entry_point=entry_point,
        vector_entry_point=vector_entry_point,
        nondeterministic=True,  # times differ between runs
        # The checker looks at the first reset alone. After one that was refused for its options it takes the next step,
        # evaluation and all, for a TypeError. Tests run `check_env` on every id.
        disable_env_checker=True,
        max_episode_steps=MAX_EPISODE_STEPS,
        kwargs=kwargs,
    )
