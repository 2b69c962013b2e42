"""What TRL's `GRPOTrainer` calls in a rollout: the tool environment, or the reward function of single-turn rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.reward import Reward
from pkb_gym.training.evaluation.judge import Judge
from pkb_gym.training.inputs.chat import Message
from pkb_gym.training.rollout.episodes import Episode, Task

CODE_BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)

NO_EPISODE = "nothing can be submitted before `reset`"


@dataclass(frozen=True)
class Rollouts:
    """Begins episodes.

    Attributes:
        judge: of submissions.
        max_turns: submissions that are judged in an episode.
        judged: what no row of the prompts says of an evaluation: last stage, deadlines, time for timing.
        nothing: worth of an episode without any submission; `worth_of_nothing` tells it.
    """

    judge: Judge
    max_turns: int = 4
    judged: EvalConfig = field(default_factory=lambda: EvalConfig(until="time"))
    nothing: float = 0.0

    def begin(self, row: Mapping[str, object]) -> Episode:
        """An episode on a row of the prompts; see `Task.of_row`."""
        return Episode(Task.of_row(row, self.judged), self.judge, self.max_turns, self.nothing)


def worth_of_nothing(reward: str | Reward) -> float:
    """What a rollout without any submission is worth: as much as a text that is no source at all.

    Example:
        >>> worth_of_nothing("default"), worth_of_nothing("cuda_agent")
        (0.0, -1.0)
    """
    return find_reward(reward)(failed("rejected")) or 0.0


class KernelEnvironment:
    """One rollout at a time, for TRL's `GRPOTrainer(environment_factory=...)`.

    TRL makes a tool of every public method but `reset` and `get_reward`, so there is one, `submit`, the same as that
    of `KernelTool`. The prompt of a row holds all that the policy is told, so that `reset` adds nothing.

    Args:
        rollouts: begins episodes.

    Attributes:
        episode: the current one; None before the first.

    Example:
        >>> from functools import partial
        >>> factory = partial(KernelEnvironment, Rollouts(judge, max_turns=2))  # doctest: +SKIP
    """

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self.episode: Episode | None = None

    def reset(self, **row: object) -> None:
        """Begins a rollout on a row of the prompts; see `Task.of_row`.

        Raises:
            ConfigError, ProblemNotFound: the row cannot be understood.
        """
        self.episode = self._rollouts.begin(row)

    async def submit(self, source: str) -> str:
        """Compile a kernel, run it on all ranks, check it against the reference and time it against the baseline.

        Args:
            source: The complete source file of the kernel, in one of the languages that the task accepts.

        Returns:
            What was found: compiler errors, wrong outputs, times, the roofline, and where the time went.
        """
        return NO_EPISODE if self.episode is None else await self.episode.submit(source)

    def get_reward(self) -> float | None:
        """The value of the best submission; None where the evaluator failed, and nothing is to be learnt."""
        return None if self.episode is None else self.episode.worth


def submitted_source(completion: str | list[Message]) -> str | None:
    r"""What a single-turn completion submits: the last fenced block of code of its last message.

    Args:
        completion: its text, or its messages.

    Returns:
        The source; None where there is no block that ends.

    Example:
        >>> submitted_source("First:\n```cpp\nint a;\n```\nBetter:\n```cpp\nint b;\n```")
        'int b;\n'
    """
    text = completion if isinstance(completion, str) else str(completion[-1]["content"])
    blocks: list[str] = CODE_BLOCK.findall(text)
    return blocks[-1] if blocks else None
