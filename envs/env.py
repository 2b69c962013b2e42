"""The Gymnasium environment of one problem: kernel source in, feedback and reward out."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Never, TypeAlias

import gymnasium as gym
import numpy as np

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.records.config import EvalConfig, Protocol, ResolvedConfig, Until
from pkb_gym.engine.records.config_request import checked_config
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.stages.execution_environment import check_memory
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.envs import evaluator_registry
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.plain_spec import PlainSpec
from pkb_gym.envs.spaces import Observation, action_space, observation_space, observe
from pkb_gym.envs.text.task import LANGUAGES, task_text
from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES, Style
from pkb_gym.envs.turn_limit import turn_limit
from pkb_gym.problems.catalogue import choose_problem, lookup_key
from pkb_gym.rewards import Reward, find_reward

Frame: TypeAlias = "str | np.ndarray[Any, np.dtype[np.uint8]]"
MAX_SEED = 2**31 - 1

COMPILES_ONLY = (
    "the machine that judges has no GPU: CUDA sources are compiled and not run, their failure is compiled_only, and "
    "they earn no reward. device='emulated' runs them on a model of GPUs, device='cpu' runs C++ kernels; "
    "evaluator='http://...' has them judged elsewhere"
)


class PKBEnv(PlainSpec, gym.Env[Observation, str]):
    """One problem of ParallelKernelBench.

    ## Description
    An agent writes a kernel that computes, on several ranks, what a PyTorch + torch.distributed reference computes, and
    does it faster. Each step submits a source; it is compiled, run on every rank, checked against the reference, timed
    against it, profiled, and placed on a roofline. The findings come back as feedback and reward, and the agent may
    submit an improved source.

    ## Action Space
    `SourceText`: the source of one kernel, in the native dialect (C++ or CUDA C++ that exports `solution`) or as a
    Python module. Text that is no source (empty, too long, with NUL characters) is rejected before a compiler runs.

    ## Observation Space
    `Dict` of what the agent may know. Numbers that were not measured are 0, with a flag that marks them.

    | entry                                                   | meaning                                                |
    |---------------------------------------------------------|--------------------------------------------------------|
    | `task`                                                  | the task: reference, signature, shapes, rules, machine |
    | `feedback`                                              | all that was found of the last submission, as text     |
    | `stage`, `failure`                                      | 0, or 1 + position in `STAGES`, `FAILURES`             |
    | `compiler_log`, `correctness_report`, `profiler_report` | its parts                                              |
    | `is_checked`, `right_share`                             | right elements among all compared                      |
    | `is_timed`, `times_us`, `speedup`, `speedup_captured`   | (baseline, candidate); each (estimate, low, high)      |
    | `is_placed`, `roofline_us`                              | (ceiling, matrix, vector, memory, link)                |
    | `utilisation`                                           | ceiling over time, of (baseline, candidate)            |
    | `turn`                                                  | submissions so far                                     |
    | `is_limited`, `turns_left`                              | submissions until the episode is truncated             |
    | `best_turn`, `best_value`                               | the best submission so far; turn 0 means none          |
    | `best_speedup`, `best_source`                           | its speedup, 0 if not timed, and its text              |

    ## Rewards
    By default a wrong submission earns 0 to 0.3, a right one 1 at the baseline's speed and 1.27 at the speed that is
    known to be reachable, by the lower end of its speedup's interval, and a race -0.35; a step is paid what it adds to
    the best submission so far. A source that was submitted before in the episode gets its first verdict again, whatever
    its comments and blanks: noise is not paid. `pkb_gym.rewards` holds others.

    ## Starting State
    The task text; nothing is compiled or started. The seed fixes the inputs, together with the evaluator's key.

    ## Episode End
    An episode never terminates: a right kernel may become faster still. It is truncated after `max_episode_steps` turns
    (default 8), and when the evaluator itself failed; then the reward is 0 and `info["reward_valid"]` is False. So it
    is where this machine has no GPU and a CUDA source was compiled and not run (failure `compiled_only`), but the
    episode goes on.

    ## Information
    `reset` returns `problem` and `input_seed`; `step` returns `feedback` (the `Feedback` record), `reward_valid`,
    `reward_parts` (what the value of the submission is made of) and, where it is valid, `value`.

    ## Arguments
    ```python
    import gymnasium as gym
    import pkb_gym

    env = gym.make("PKB/HyenaCP-v0", device="cpu", world_size=2, size="tiny", reward="default")
    ```

    | argument        | values                                                | default                             |
    |-----------------|-------------------------------------------------------|-------------------------------------|
    | `problem`       | of `PKB/Path-v0` alone: path of a problem's folder    |                                     |
    | `device`        | "auto", "cuda", "cpu", "emulated"                     | "auto": GPUs where there are any    |
    | `world_size`    | ranks                                                 | 1, 2, 4 or 8, as GPUs allow; else 4 |
    | `ranks_per_gpu` | ranks that share a GPU; above 1 nothing is timed      | 1                                   |
    | `size`          | "tiny", "published", "large", or a dict of axes       | "published" on GPUs, else "tiny"    |
    | `dtype`         | one of the problem's                                  | the problem's first                 |
    | `language`      | "auto", "cpp", "cuda", "triton", "python"             | "auto": found from the source       |
    | `protocol`      | "robust", "published"                                 | "robust"                            |
    | `until`         | last stage: "compile", "check", "time", "profile"     | "profile"; "check" if emulated      |
    | `timeout_s`     | deadline of a block of calls, in seconds              | 10, or 30 times the baseline        |
    | `race_check`    | "auto", "on", "off", "strict": the race detector      | "auto": "on" where it can be        |
    | `style`         | "full", "standard", "brief": length of the task text  | "standard"                          |
    | `reward`        | a name, "module:function", or a function of Feedback  | "default"                           |
    | `evaluator`     | "local", "ray", a url, a name, or an object           | "local"                             |
    | `render_mode`   | None, "ansi", "rgb_array"                             | None                                |

    ## Version History
    * v0: initial version
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012  # as in gym.Env
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The keys of `options` that `reset` accepts."""
    FIXED: ClassVar[tuple[str, ...]] = ()
    """Arguments that are not for users of the class."""

    def __init__(
        self,
        problem: str | os.PathLike[str],
        *,
        device: Literal["auto", "cpu", "cuda", "emulated"] = "auto",
        world_size: int | None = None,
        ranks_per_gpu: int | None = None,
        size: str | Mapping[str, AxisValue] | None = None,
        dtype: str | None = None,
        language: Literal["auto", "cpp", "cuda", "triton", "python"] = "auto",
        protocol: Protocol = "robust",
        until: Until | None = None,
        timeout_s: float | None = None,
        race_check: Literal["auto", "on", "off", "strict"] = "auto",
        style: Style = DEFAULT_STYLE,
        reward: str | Reward = "default",
        evaluator: str | Evaluator = "local",
        render_mode: Literal["ansi", "rgb_array"] | None = None,
        **unknown: Never,
    ) -> None:
        self._refuse_unknown(unknown)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"render_mode must be None, 'ansi' or 'rgb_array', got {render_mode!r}")
        if style not in STYLES:
            raise ConfigError(f"style must be one of {', '.join(STYLES)}, got {style!r}")
        evaluator_registry.check_evaluator(evaluator)
        self.render_mode = render_mode
        self.action_space = action_space()
        self.observation_space = observation_space()  # type: ignore[assignment]  # Dict has a wider type
        self._requested = checked_config(
            {
                "device": device,
                "world_size": world_size,
                "ranks_per_gpu": ranks_per_gpu,
                "size": dict(size) if isinstance(size, Mapping) else size,
                "dtype": dtype,
                "language": language,
                "protocol": protocol,
                "until": until,
                "timeout_s": timeout_s,
                "race_check": race_check,
            }
        )
        self.style = style
        self._reward = find_reward(reward)
        self._evaluator = evaluator
        if problem == "":
            raise ConfigError("PKB/Path-v0: give problem=PATH, the folder that holds problem.py and reference.py")
        self._problem = choose_problem(problem)
        self._config: ResolvedConfig | None = None
        self._was_warned = False
        if evaluator_registry.evaluates_here(evaluator):
            self._config = self._fitting_config(self._problem)
        self._input_seed, self._task = 0, ""
        self._turn_limit: int | None = None
        self._episode = self._new_episode()

    @classmethod
    def name_in_errors(cls) -> str:
        """The class as its users know it."""
        return cls.__name__

    @classmethod
    def _refuse_unknown(cls, arguments: Mapping[str, object]) -> None:
        """Raises a ConfigError where there are arguments that no signature of the class has."""
        for name in arguments:
            known = [
                argument.name
                for of in cls.__mro__
                if issubclass(of, PKBEnv)
                for argument in inspect.signature(of.__init__).parameters.values()
                if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY) and argument.name != "self"
            ]
            known = [one for one in dict.fromkeys(known) if one not in cls.FIXED]
            listed = ", ".join(known)
            raise ConfigError(
                f"{cls.name_in_errors()}: no argument {name!r}; there are {listed}.{did_you_mean(name, known)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Problems hold functions of their files, which have no place in a pickle: names or folders do."""
        return self.__dict__ | {"_problem": lookup_key(self._problem)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_problem": choose_problem(state["_problem"])})

    @property
    def problem(self) -> Problem:
        """The problem of this episode."""
        return self._problem

    @property
    def config(self) -> ResolvedConfig:
        """The configuration of evaluations, where the source does not decide it.

        Raises:
            ConfigError, SizeError: An evaluator on another machine, which is asked for it first here, cannot meet it.
            InfrastructureError: That evaluator cannot be reached.
        """
        if self._config is None:
            self._config = self._fitting_config(self._problem)
        return self._config

    @property
    def machine(self) -> Machine:
        """The machine that judges, as the evaluator describes it.

        Raises:
            ConfigError, InfrastructureError: The evaluator cannot describe it, or cannot be reached.
        """
        return evaluator_registry.find_machine(self._evaluator)

    @property
    def request(self) -> EvalConfig:
        """The request under which the next submission is judged: what was asked for, with seed and turn.

        Device, world size, size and dtype are those of the task text.
        """
        names = ("device", "world_size", "ranks_per_gpu", "size", "dtype")
        fixed = {name: getattr(self.config, name) for name in names}
        return self._requested.model_copy(update=fixed | {"seed": self._input_seed, "turn": len(self._episode.turns)})

    @property
    def episode(self) -> Episode:
        """The submissions since the last reset."""
        return self._episode

    @property
    def feedback(self) -> Feedback | None:
        """The feedback on the last submission; None before the first of an episode."""
        return self._episode.feedback

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode; see the class.

        Args:
            seed: Seed of the inputs of this episode and, through the generator, of those that follow.
            options: Options of the reset; none are known here.

        Returns:
            The observation with the task text, and `problem` and `input_seed`.

        Raises:
            ConfigError: An option is not known, or names no problem; an evaluator on another machine, which is asked
                for that machine at the first reset, cannot meet the configuration.
            InfrastructureError: That evaluator cannot be reached.
            gymnasium.error.Error: The seed is no whole number >= 0.
        """
        super().reset(seed=seed)
        if not isinstance(options, Mapping | None):
            raise ConfigError(f"{self.name_in_errors()}.reset: options are a mapping of names, got {options!r}")
        unknown = sorted(str(name) for name in (options or {}) if name not in self.OPTIONS)
        if unknown:
            known, hint = ", ".join(self.OPTIONS) or "none", did_you_mean(unknown[0], self.OPTIONS)
            raise ConfigError(f"{self.name_in_errors()}.reset: no option {', '.join(unknown)}; known: {known}.{hint}")
        self._choose_problem(options or {})
        self._input_seed, self._task = int(self.np_random.integers(MAX_SEED)), ""
        self._episode = self._new_episode()
        self._turn_limit = turn_limit(self)
        return self._observe(), {"problem": self._problem.name, "input_seed": self._input_seed}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Judges a source; see the class.

        Args:
            action: Text of the source.

        Raises:
            InvalidAction: The action is not a string.
            InfrastructureError: The evaluator could not be started or reached.
            ConfigError: An evaluation service has no such device, or not as many ranks.
        """
        source = checked_action(action)
        feedback = self._episode.earlier_feedback(source) or self.evaluate(source)
        turn = self._episode.record(source, feedback)
        self._turn_limit = turn_limit(self)
        info: dict[str, Any] = {"feedback": feedback, "reward_valid": turn.is_valid, "reward_parts": turn.parts}
        if turn.value is not None:
            info["value"] = turn.value
        return self._observe(), turn.reward, False, turn.is_fault, info

    def evaluate(self, source: str) -> Feedback:
        """Has the evaluator judge a source as the next submission, without recording it.

        Raises:
            InfrastructureError: The evaluator could not be started or reached.
            ConfigError: An evaluation service has no such device, or not as many ranks.
        """
        return evaluator_registry.find_evaluator(self._evaluator).evaluate(self._problem, source, self.request)

    def render(self) -> Frame | None:
        """The last submission as a card ("ansi") or as a roofline picture ("rgb_array": (height, width, 3) uint8)."""
        if self.render_mode is None:
            return None
        from pkb_gym.envs import render

        episode = self._episode
        if self.render_mode == "ansi":
            reward = episode.turns[-1].reward if episode.turns else None
            return render.card_text(self._problem, self.config, episode.feedback, reward)
        return render.roofline_picture(self._problem, self.config, episode.feedback)

    def _choose_problem(self, options: Mapping[str, Any]) -> None:
        """Called at each reset; this environment keeps its problem."""

    def _set_problem(self, problem: Problem) -> None:
        self._problem, self._config = problem, self._fitting_config(problem)

    def _fitting_config(self, problem: Problem) -> ResolvedConfig:
        machine = self.machine
        try:
            config = machine.resolve(self._requested, problem)
            check_memory(problem, config, machine)
        except ConfigError as error:
            if evaluator_registry.evaluates_here(self._evaluator):
                raise
            raise type(error)(f"{self._evaluator}: {error}") from None
        if not (self._was_warned or machine.can_run(config.device)):
            self._was_warned = True
            warnings.warn(COMPILES_ONLY, stacklevel=3)
        return config

    def _new_episode(self) -> Episode:
        return Episode(self._reward)

    def _observe(self) -> Observation:
        if not self._task:
            language = self._requested.language
            languages = LANGUAGES[self.config.device] if language == "auto" else (language,)
            self._task = task_text(self._problem, self.config, languages, self.machine, self.style)
        return observe(self._task, self._episode, self._turns_left())

    def _turns_left(self) -> int | None:
        if self._turn_limit is None:
            return self._episode.turns_left
        return self._turn_limit - len(self._episode.turns)


def checked_action(action: object) -> str:
    """An action that is text.

    Raises:
        InvalidAction: The action is not a string.
    """
    if not isinstance(action, str):
        raise gym.error.InvalidAction(f"an action is source text (str), got {type(action).__name__}")
    return action
