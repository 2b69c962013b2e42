"""An environment that draws another problem at each reset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import CATEGORIES
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.envs.env import PKBEnv
from pkb_gym.envs.evaluator_registry import evaluates_here
from pkb_gym.envs.samplers import Sampler, SamplerLike, find_sampler
from pkb_gym.problems.catalogue import all_problems, catalogue, find_problem
from pkb_gym.problems.splits import SPLITS


def split_names(split: str | Sequence[str]) -> tuple[str, ...]:
    """The problems of a split, in upstream order; those outside this package come last.

    Args:
        split: "all", "train", "test", a category such as "tensor_parallel", or a list of problems. "train" and "test"
            are listed in `problems/splits.json`, with the rule that they follow.

    Raises:
        ConfigError: There is no such split, or it is empty.
        ProblemNotFound: A listed problem does not exist.
    """
    problems = catalogue()
    if not isinstance(split, str):
        if not isinstance(split, list | tuple | set | frozenset):
            raise ConfigError(f"a split is a name or a list of problems, got {split!r}")
        chosen = {find_problem(name).name for name in split}
        problems = all_problems()
    elif split == "all":
        chosen = {problem.name for problem in problems}
    elif split in ("train", "test"):
        listed = set(json.loads(SPLITS.read_text(encoding="utf-8"))[split])
        chosen = {problem.name for problem in problems if problem.name in listed}
    elif split in CATEGORIES:
        chosen = {problem.name for problem in problems if problem.category == split}
    else:
        known = ("all", "train", "test", *CATEGORIES)
        hint = did_you_mean(split, known)
        raise ConfigError(f"no split {split!r}; there are {', '.join(known)}, or a list of names.{hint}")
    if not chosen:
        raise ConfigError(f"split {split!r} is empty")
    return tuple(problem.name for problem in problems if problem.name in chosen)


class SuiteEnv(PKBEnv):
    """Many problems of ParallelKernelBench, one per episode.

    ## Description
    As `PKBEnv`, but each reset draws a problem from a split by the environment's generator: uniformly, or as another
    sampler has it. `reset(options={"problem": "HyenaCP"})` chooses one, of the split or not. A sampler is
    updated with the value of an episode's best submission at the reset that follows it.

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
    Those of `PKBEnv` without `problem`, and

    | argument  | values                                                                        | default   |
    |-----------|-------------------------------------------------------------------------------|-----------|
    | `split`   | "train", "test", "all", a category, or a list of problems                     | "train"   |
    | `sampler` | "uniform", "learning_progress", a mapping of "name" and parameters, an object | "uniform" |

    Size, dtype and world size must fit every problem of the split. Environments that are given one sampler object learn
    from each other's episodes; `pkb_gym.envs.samplers` holds the samplers.

    ## Version History
    * v0: initial version
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("problem",)
    FIXED: ClassVar[tuple[str, ...]] = ("problem",)

    def __init__(self, split: str | Sequence[str] = "train", sampler: SamplerLike = "uniform", **kwargs: Any) -> None:
        if "problem" in kwargs:
            raise ConfigError(
                f"{self.name_in_errors()}: problem={kwargs['problem']!r} is for one reset, "
                "env.reset(options={'problem': ...}); split=[...] has the problems to draw from"
            )
        self._names = split_names(split)
        self._sampler = find_sampler(sampler)
        super().__init__(self._names[0], **kwargs)
        self._is_checked = False
        if evaluates_here(self._evaluator):
            self._check_all()

    @property
    def problem_names(self) -> tuple[str, ...]:
        """The problems of the split, in upstream order."""
        return self._names

    @property
    def sampler(self) -> Sampler:
        """The sampler that draws the problems, with all that it has learnt."""
        return self._sampler

    def _check_all(self) -> None:
        """Refuses a configuration that does not fit every problem: now, not in the hundredth episode."""
        for name in self._names:
            self._fitting_config(find_problem(name))
        self._is_checked = True

    def _choose_problem(self, options: Mapping[str, Any]) -> None:
        if not self._is_checked:
            self._check_all()
        requested = None if options.get("problem") is None else find_problem(options["problem"])
        if (best := self._episode.best_value) is not None:
            self._sampler.update(self._problem.name, best)
        self._set_problem(requested or find_problem(self._sampler.choose(self._names, self.np_random)))
