"""An environment that draws another problem at each reset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import CATEGORIES
from pkb_gym.envs.env import PKBEnv
from pkb_gym.problems.catalogue import catalogue, find_problem

SPLITS = Path(__file__).parent.parent / "problems" / "splits.json"
"""Names of both splits, the groups of near-duplicates that keep together, and the rule."""


def split_names(split: str | Sequence[str]) -> tuple[str, ...]:
    """The problems of a split, in upstream order.

    Args:
        split: "all", "train", "test", a category such as "tensor_parallel", or a list of problems. "train" and "test"
            are listed in `problems/splits.json`, with the rule that they follow.

    Raises:
        ConfigError: there is no such split, or nothing in it.
        ProblemNotFound: a listed problem does not exist.
    """
    problems = catalogue()
    if not isinstance(split, str):
        chosen = {find_problem(name).name for name in split}
    elif split == "all":
        chosen = {problem.name for problem in problems}
    elif split in ("train", "test"):
        listed = set(json.loads(SPLITS.read_text(encoding="utf-8"))[split])
        chosen = {problem.name for problem in problems if problem.name in listed}
    elif split in CATEGORIES:
        chosen = {problem.name for problem in problems if problem.category == split}
    else:
        raise ConfigError(
            f"no split {split!r}; there are all, train, test, {', '.join(CATEGORIES)}, or a list of names"
        )
    if not chosen:
        raise ConfigError(f"split {split!r} is empty")
    return tuple(problem.name for problem in problems if problem.name in chosen)


class SuiteEnv(PKBEnv):
    """Many problems of ParallelKernelBench, one per episode.

    ## Description
    As `PKBEnv`, but each reset draws a problem from a split, uniformly, by the environment's generator.
    `reset(options={"problem": "HyenaCP"})` chooses one, of the split or not.

    ## Action Space
    As `PKBEnv`.

    ## Observation Space
    As `PKBEnv`; the same for every problem.

    ## Rewards
    As `PKBEnv`.

    ## Starting State
    The task text of the problem drawn.

    ## Episode End
    As `PKBEnv`.

    ## Arguments
    Those of `PKBEnv` without `problem`, and `split`: "train" (default), "test", "all", a category, or a list of
    problems. Size, dtype and world size must fit every problem of the split.

    ## Version History
    * v0: initial version
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("problem",)

    def __init__(self, split: str | Sequence[str] = "train", **kwargs: Any) -> None:
        self._names = split_names(split)
        super().__init__(self._names[0], **kwargs)
        for name in self._names:  # a configuration that does not fit is refused now, not in the hundredth episode
            self._set_problem(find_problem(name))

    @property
    def problem_names(self) -> tuple[str, ...]:
        """The problems of the split, in upstream order."""
        return self._names

    def _choose_problem(self, options: Mapping[str, Any]) -> None:
        asked = options.get("problem")
        name = self._names[int(self.np_random.integers(len(self._names)))] if asked is None else str(asked)
        self._set_problem(find_problem(name))
