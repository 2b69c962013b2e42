"""Vector environments whose submissions are evaluated side by side over one evaluator."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.env import Frame, PKBEnv
from pkb_gym.envs.plain_spec import PlainSpec
from pkb_gym.envs.samplers import SamplerLike, find_sampler
from pkb_gym.envs.spaces import Observation
from pkb_gym.envs.suite import SuiteEnv

Batch: TypeAlias = "dict[str, tuple[str, ...] | NDArray[Any]]"
StepResult: TypeAlias = tuple[Observation, float, bool, bool, dict[str, Any]]
BatchResult: TypeAlias = tuple[Batch, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class PKBVectorEnv(PlainSpec, VectorEnv[Batch, Sequence[str], NDArray[Any]]):
    """Several copies of `PKBEnv`; `gym.make_vec("PKB/...")` makes one.

    Threads are enough, since an evaluator's work is done by other processes: compiling runs in parallel, and the
    evaluator itself sees to it that nothing else runs while it times. (`AsyncVectorEnv` starts an evaluator per
    sub-environment, whose timings disturb each other unless `evaluator` is the url of a service, and its shared memory
    does not hold texts: it needs `vector_kwargs={"shared_memory": False}`.)

    `step` waits for all sub-environments. `send` and `recv` do not, after the manner of EnvPool: `send` submits sources
    for some of them, and `recv` gives a batch of whichever are ready, with their numbers in `info["env_id"]`.

    Args:
        num_envs: Number of sub-environments.
        max_episode_steps: Number of turns of an episode, at least 1; None for no limit.
        autoreset_mode: How an episode that ended is reset, as in Gymnasium's `SyncVectorEnv`: "NextStep" by the next
            step, whose action for it is ignored; "SameStep" at once, with the last observation and information in
            `info["final_obs"]` and `info["final_info"]`; "Disabled" by `reset(options={"reset_mask": ...})` alone.
        **kwargs: Arguments of the sub-environments, the same for all.
    """

    env_class: ClassVar[Callable[..., PKBEnv]] = PKBEnv

    def __init__(
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if type(num_envs) is not int or num_envs < 1:
            raise ConfigError(f"num_envs must be a whole number, at least 1, got {num_envs!r}")
        self.num_envs = num_envs
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.bare_envs = [type(self).env_class(**kwargs) for _ in range(num_envs)]
        self.envs: list[gym.Env[Observation, str]] = [
            env if max_episode_steps is None else gym.wrappers.TimeLimit(env, max_episode_steps)
            for env in self.bare_envs
        ]
        first = self.bare_envs[0]
        self.metadata = dict(first.metadata) | {"autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_action_space = first.action_space
        self.single_observation_space = first.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._observations: list[Observation] = []  # before the first reset
        self._ended = np.zeros(num_envs, np.bool_)
        self._sent: set[int] = set()
        self._ready: queue.SimpleQueue[tuple[int, Future[StepResult]]] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Threads belong to a process; others are started when they are needed."""
        if self._sent:
            raise TypeError(f"results of sub-environments {sorted(self._sent)} are under way; recv() takes them first")
        return self.__dict__ | {"_threads": None, "_ready": None}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Batch, dict[str, Any]]:
        """Begins an episode in every sub-environment, or in those of a mask.

        Args:
            seed: Seed of the first sub-environment, with the numbers that follow for the others; or one seed for each.
            options: Options of the reset, the same for all; and `reset_mask`, an array of `num_envs` booleans that
                marks the sub-environments to reset. The others keep their episodes.

        Returns:
            The observations of all sub-environments, and the information of those that were reset.

        Raises:
            ConfigError: The number of seeds is not the number of sub-environments, an option is not known, the mask is
                no such array, or results are under way that `recv` has not given yet.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("reset")
        self._check_idle("reset")
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = [seeds + index for index in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ConfigError(f"expected {self.num_envs} seeds, one per sub-environment, got {len(seeds)}")
        chosen, options = self._reset_mask(options)
        results = {index: self.envs[index].reset(seed=seeds[index], options=options) for index in chosen}
        self._observations = [
            results[index][0] if index in results else self._observations[index] for index in range(self.num_envs)
        ]
        self._ended[chosen] = False
        infos: dict[str, Any] = {}
        for index, (_, info) in results.items():
            infos = self._add_info(infos, info, index)
        return self._batch(self._observations), infos

    def step(self, actions: Sequence[str]) -> BatchResult:
        """Judges one source per sub-environment, all at the same time, and waits for all.

        Args:
            actions: Sources, in the order of the sub-environments.

        Raises:
            ConfigError: The number of actions is not the number of sub-environments, or results are under way that
                `recv` has not given yet.
            InvalidAction: An action is not a string.
            ResetNeeded: No episode has begun, or one has ended and is not reset by itself.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("step")
        self._check_idle("step")
        self._send(actions, range(self.num_envs), "step")
        finished = dict(self._take() for _ in range(self.num_envs))
        return self._received([(index, finished[index]) for index in range(self.num_envs)])

    def send(self, actions: Sequence[str], env_ids: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Submits sources for some sub-environments, and waits for none; `recv` gives the results.

        Args:
            actions: Sources, one for each of `env_ids`.
            env_ids: Numbers of sub-environments, from 0, none of which has a result under way; all by default.

        Raises:
            ConfigError: The numbers are no such numbers, or not as many as actions.
            InvalidAction: An action is not a string.
            ResetNeeded: No episode has begun, or one has ended and is not reset by itself.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("send")
        indices = list(range(self.num_envs)) if env_ids is None else [_whole(env_id) for env_id in env_ids]
        if len(set(indices)) < len(indices) or not all(0 <= index < self.num_envs for index in indices):
            raise ConfigError(f"env_ids are different numbers from 0 to {self.num_envs - 1}, got {indices}")
        if waiting := sorted(self._sent.intersection(indices)):
            raise ConfigError(f"results of sub-environments {waiting} are under way; recv() takes them first")
        self._send(actions, indices, "send")

    def recv(self, batch_size: int | None = None) -> BatchResult:
        """Waits for results of what was sent; never for the slowest kernel, unless all are asked for.

        Args:
            batch_size: Number of results, at least 1, those that are ready first; None waits for one and takes all that
                are ready by then.

        Returns:
            As `step`, of the sub-environments that are ready alone, in the order in which they became so, with their
            numbers in `info["env_id"]`.

        Raises:
            ConfigError: Fewer results are under way.
            InfrastructureError: The evaluator failed at one of the submissions; the results of others stay for the next
                call.
            ClosedEnvironmentError: The environment was closed.
        """
        self._check_open("recv")
        least = 1 if batch_size is None else batch_size
        if type(least) is not int or not 1 <= least <= len(self._sent):
            raise ConfigError(
                f"recv({'' if batch_size is None else batch_size}): results of {len(self._sent)} sub-environments are "
                "under way; send(actions, env_ids) submits more"
            )
        taken = [self._take() for _ in range(least)]
        with contextlib.suppress(queue.Empty):
            while batch_size is None:
                taken.append(self._take(wait=False))
        return self._received(taken, with_ids=True)

    def render(self) -> tuple[Frame | None, ...]:  # type: ignore[override]  # the base class knows no plain text
        """One card or picture per sub-environment."""
        return tuple(env.render() for env in self.bare_envs)

    def close_extras(self, **_: Any) -> None:
        """Ends the threads, once they have what was sent; a shared evaluator stays for others."""
        if self._threads is not None:
            self._threads.shutdown()
        self._sent.clear()
        for env in self.envs:
            env.close()

    def _check_open(self, method: str) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"Cannot call env.{method}() after calling env.close()")

    def _check_idle(self, method: str) -> None:
        if self._sent:
            raise ConfigError(
                f"env.{method}(): results of sub-environments {sorted(self._sent)} are under way; recv() takes them "
                "first"
            )

    def _reset_mask(self, options: Mapping[str, Any] | None) -> tuple[list[int], dict[str, Any] | None]:
        """The sub-environments to reset, and the options without the mask."""
        if not isinstance(options, Mapping) or "reset_mask" not in options:
            return list(range(self.num_envs)), cast("dict[str, Any] | None", options)  # each refuses what is no mapping
        mask = options["reset_mask"]
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not is_mask or not mask.any():
            raise ConfigError(
                f"options['reset_mask'] is a numpy array of {self.num_envs} booleans, at least one of them True, got "
                f"{mask!r}"
            )
        if not (self._observations or mask.all()):
            raise gym.error.ResetNeeded("Cannot reset some sub-environments before all were reset once")
        return np.flatnonzero(mask).tolist(), {key: each for key, each in options.items() if key != "reset_mask"}

    def _send(self, actions: Sequence[str], indices: Sequence[int], method: str) -> None:
        """Begins the steps; nothing is begun where one of them is refused."""
        if not self._observations:
            raise gym.error.ResetNeeded(f"Cannot call env.{method}() before calling env.reset()")
        given: object = actions
        is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
        if not is_list or len(actions) != len(indices):
            raise ConfigError(f"expected a sequence of {len(indices)} sources, one per sub-environment")
        over = [index for index in indices if self._ended[index]]
        if over and self.autoreset_mode is AutoresetMode.DISABLED:
            raise gym.error.ResetNeeded(
                f"the episodes of sub-environments {over} have ended; env.reset(options={{'reset_mask': ...}}) begins "
                "others"
            )
        # Before any is judged: sources beside it would be judged, and their results lost.
        for index, action in zip(indices, cast(Sequence[object], actions), strict=True):
            if not (isinstance(action, str) or index in over):
                raise gym.error.InvalidAction(
                    f"action {index}: source text (str) is needed, got {type(action).__name__}"
                )
        if self._threads is None or self._ready is None:
            self._threads = ThreadPoolExecutor(self.num_envs, thread_name_prefix="pkb-vector")
            self._ready = queue.SimpleQueue()
        ready = self._ready
        self._sent.update(indices)
        for index, action in zip(indices, actions, strict=True):
            if index in over:
                # Not in a thread, and in order: environments may share a sampler, whose draws depend on the order.
                future: Future[StepResult] = Future()
                future.set_result(self._reset(index))
            else:
                future = self._threads.submit(self._step, index, action)
            future.add_done_callback(lambda done, index=index: ready.put((index, done)))  # type: ignore[misc]

    def _take(self, *, wait: bool = True) -> tuple[int, Future[StepResult]]:
        """The next result to be ready.

        Raises:
            queue.Empty: None is, and there is to be no wait.
        """
        assert self._ready is not None, "something was sent"
        index, future = self._ready.get(block=wait)
        self._sent.discard(index)
        return index, future

    def _received(self, taken: Sequence[tuple[int, Future[StepResult]]], *, with_ids: bool = False) -> BatchResult:
        """A batch of results, after the resets that belong to them.

        Raises:
            Exception: A step's; the results beside it are kept for the next `recv`, but not those of a `step`.
        """
        failed = next((future for _, future in taken if future.exception() is not None), None)
        if failed is not None:
            for index, future in taken if with_ids else ():
                if future is not failed:
                    self._sent.add(index)
                    assert self._ready is not None
                    self._ready.put((index, future))
            failed.result()
        indices = [index for index, _ in taken]
        rewards, terminated, truncated = np.zeros(len(taken)), *np.zeros((2, len(taken)), np.bool_)
        infos: dict[str, Any] = {}
        for place, (index, future) in enumerate(taken):
            observation, rewards[place], terminated[place], truncated[place], info = future.result()
            self._ended[index] = terminated[place] or truncated[place]
            if self._ended[index] and self.autoreset_mode is AutoresetMode.SAME_STEP:
                infos = self._add_info(infos, {"final_obs": observation, "final_info": info}, index)
                observation, _, _, _, info = self._reset(index)
                self._ended[index] = False
            self._observations[index] = observation
            infos = self._add_info(infos, info, index)
        if with_ids:
            infos = _rows(infos, indices) | {"env_id": np.array(indices, np.int64)}
        return self._batch([self._observations[index] for index in indices]), rewards, terminated, truncated, infos

    def _reset(self, index: int) -> StepResult:
        observation, info = self.envs[index].reset()
        return observation, 0.0, False, False, info

    def _step(self, index: int, action: str) -> StepResult:
        observation, reward, terminated, truncated, info = self.envs[index].step(action)
        return observation, float(reward), terminated, truncated, info

    def _batch(self, observations: Sequence[Observation]) -> Batch:
        space = self.single_observation_space
        empty = cast(Batch, create_empty_array(space, n=len(observations), fn=np.zeros))  # a Dict gives a dict
        return cast(Batch, concatenate(space, observations, empty))


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in AutoresetMode)
        raise ConfigError(f"autoreset_mode must be one of {known}, got {mode!r}") from None


def _whole(env_id: object) -> int:
    if not isinstance(env_id, int | np.integer) or isinstance(env_id, bool):
        raise ConfigError(f"env_ids are numbers of sub-environments, got {env_id!r}")
    return int(env_id)


def _rows(infos: Mapping[str, Any], indices: Sequence[int]) -> dict[str, Any]:
    """Information of all sub-environments, reduced to some of them, in this order."""
    return {
        key: _rows(value, indices) if isinstance(value, Mapping) else value[list(indices)]
        for key, value in infos.items()
    }


class SuiteVectorEnv(PKBVectorEnv):
    """Several copies of `SuiteEnv`, each on a problem of its own, drawn by one sampler that learns from all."""

    env_class: ClassVar[Callable[..., PKBEnv]] = SuiteEnv

    def __init__(self, num_envs: int = 1, *, sampler: SamplerLike = "uniform", **kwargs: Any) -> None:
        super().__init__(num_envs, sampler=find_sampler(sampler), **kwargs)
