"""Vector environments whose submissions are evaluated side by side over one evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.env import Frame, PKBEnv
from pkb_gym.envs.samplers import SamplerLike, find_sampler
from pkb_gym.envs.spaces import Observation
from pkb_gym.envs.suite import SuiteEnv

Batch: TypeAlias = "dict[str, tuple[str, ...] | NDArray[Any]]"
StepResult: TypeAlias = tuple[Observation, float, bool, bool, dict[str, Any]]


class PKBVectorEnv(VectorEnv[Batch, Sequence[str], NDArray[Any]]):
    """Several copies of `PKBEnv`; `gym.make_vec("PKB/...")` makes one.

    Threads are enough, since an evaluator's work is done by other processes: compiling runs in parallel, and the
    evaluator itself sees to it that nothing else runs while it times. (`AsyncVectorEnv` starts an evaluator per
    sub-environment, whose timings disturb each other unless `evaluator` is the url of a service, and its shared memory
    does not hold texts: it needs `vector_kwargs={"shared_memory": False}`.)

    An episode that ended is reset by the next step, whose action for it is ignored (`AutoresetMode.NEXT_STEP`).

    Args:
        num_envs: Number of sub-environments.
        max_episode_steps: Number of turns of an episode, at least 1; None for no limit.
        **kwargs: Arguments of the sub-environments, the same for all.
    """

    env_class: ClassVar[Callable[..., PKBEnv]] = PKBEnv

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int | None = None, **kwargs: Any) -> None:
        super().__init__()
        if type(num_envs) is not int or num_envs < 1:
            raise ConfigError(f"num_envs must be a whole number, at least 1, got {num_envs!r}")
        self.num_envs = num_envs
        self.bare_envs = [type(self).env_class(**kwargs) for _ in range(num_envs)]
        self.envs: list[gym.Env[Observation, str]] = [
            env if max_episode_steps is None else gym.wrappers.TimeLimit(env, max_episode_steps)
            for env in self.bare_envs
        ]
        first = self.bare_envs[0]
        self.metadata = dict(first.metadata) | {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self.single_action_space = first.action_space
        self.single_observation_space = first.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._ended: NDArray[np.bool_] | None = None  # before the first reset
        self._threads: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Threads belong to a process; others are started when they are needed."""
        return self.__dict__ | {"_threads": None}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Batch, dict[str, Any]]:
        """Begins an episode in every sub-environment.

        Args:
            seed: Seed of the first sub-environment, with the numbers that follow for the others; or one seed for each.
            options: Options of the reset, the same for all.

        Raises:
            ConfigError: The number of seeds is not the number of sub-environments, or an option is not known.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("reset")
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = [seeds + index for index in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ConfigError(f"expected {self.num_envs} seeds, one per sub-environment, got {len(seeds)}")
        results = [env.reset(seed=one, options=options) for env, one in zip(self.envs, seeds, strict=True)]
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._batch(observation for observation, _ in results), self._infos(info for _, info in results)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Batch, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Judges one source per sub-environment, all at the same time.

        Args:
            actions: Sources, in the order of the sub-environments.

        Raises:
            ConfigError: The number of actions is not the number of sub-environments.
            InvalidAction: An action is not a string.
            ResetNeeded: No episode has begun.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("step")
        if self._ended is None:
            raise gym.error.ResetNeeded("Cannot call env.step() before calling env.reset()")
        given: object = actions
        is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
        if not is_list or len(actions) != self.num_envs:
            raise ConfigError(f"expected a sequence of {self.num_envs} sources, one per sub-environment")
        # Before any is judged: sources beside it would be judged, and their results lost.
        for index, action in enumerate(cast(Sequence[object], actions)):
            if not (isinstance(action, str) or self._ended[index]):
                raise gym.error.InvalidAction(
                    f"action {index}: source text (str) is needed, got {type(action).__name__}"
                )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.num_envs, thread_name_prefix="pkb-vector")
        # Before the threads and in order: environments may share a sampler, and what it draws depends on the order.
        resets = {index: self._reset(index) for index in np.flatnonzero(self._ended).tolist()}
        submitted = [index for index in range(self.num_envs) if index not in resets]
        stepped = self._threads.map(self._step, submitted, [actions[index] for index in submitted])
        by_index = resets | dict(zip(submitted, stepped, strict=True))
        results = [by_index[index] for index in range(self.num_envs)]
        terminated = np.array([result[2] for result in results], np.bool_)
        truncated = np.array([result[3] for result in results], np.bool_)
        self._ended = terminated | truncated
        rewards = np.array([result[1] for result in results], np.float64)
        infos = self._infos(result[4] for result in results)
        return self._batch(result[0] for result in results), rewards, terminated, truncated, infos

    def render(self) -> tuple[Frame | None, ...]:  # type: ignore[override]  # the base class knows no plain text
        """One card or picture per sub-environment."""
        return tuple(env.render() for env in self.bare_envs)

    def close_extras(self, **_: Any) -> None:
        """Ends the threads; a shared evaluator stays for others."""
        if self._threads is not None:
            self._threads.shutdown()
        for env in self.envs:
            env.close()

    def _check_open(self, method: str) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"Cannot call env.{method}() after calling env.close()")

    def _reset(self, index: int) -> StepResult:
        observation, info = self.envs[index].reset()
        return observation, 0.0, False, False, info

    def _step(self, index: int, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.envs[index].step(action)
        return observation, float(reward), terminated, truncated, info

    def _batch(self, observations: Iterable[Observation]) -> Batch:
        space = self.single_observation_space
        empty = cast(Batch, create_empty_array(space, n=self.num_envs, fn=np.zeros))  # a Dict gives a dict
        return cast(Batch, concatenate(space, list(observations), empty))

    def _infos(self, each: Iterable[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for index, info in enumerate(each):
            infos = self._add_info(infos, info, index)
        return infos


class SuiteVectorEnv(PKBVectorEnv):
    """Several copies of `SuiteEnv`, each on a problem of its own, drawn by one sampler that learns from all."""

    env_class: ClassVar[Callable[..., PKBEnv]] = SuiteEnv

    def __init__(self, num_envs: int = 1, *, sampler: SamplerLike = "uniform", **kwargs: Any) -> None:
        super().__init__(num_envs, sampler=find_sampler(sampler), **kwargs)
