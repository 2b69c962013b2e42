"""Rewards over the turns of an episode: potential-based shaping over the best submission so far.

The value of an episode is that of its best submission. Paid at the end alone, that is sparse; potential-based shaping
(Ng, Harada, Russell: Policy invariance under reward transformations, ICML 1999) pays it as it comes without changing
which policies are best. With the potential Phi = value of the best submission so far, turn t is paid

    F_t = gamma * Phi_t - Phi_(t-1),    Phi_0 = 0

and the discounted sum over T turns telescopes to gamma^T * Phi_T. A worse submission changes nothing of it, the same
one again earns nothing, and going down and up again earns nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import RecordedReward
from pkb_gym.rewards.reward import ItemisedReward, Reward
from pkb_gym.rewards.user_rewards import checked_parts, value_of

INITIAL_POTENTIAL = 0.0
"""Phi_0: the value of no submission at all."""


def shaping_reward(previous: float, current: float, gamma: float) -> float:
    """One turn's pay, gamma * Phi(current state) - Phi(previous state).

    Example:
        >>> shaping_reward(0.25, 1.0, gamma=1.0)
        0.75
    """
    return gamma * current - previous


def best_so_far(values: Sequence[float | None], start: float = INITIAL_POTENTIAL) -> list[float]:
    """The potential before the first turn and after each: the best value so far.

    Args:
        values: of an episode's submissions; None, where the fault was ours, changes nothing.
        start: the value of no submission at all.

    Example:
        >>> best_so_far([0.2, 1.0, None, 0.5])
        [0.0, 0.2, 1.0, 1.0, 1.0]
    """
    potentials = [start]
    for value in values:
        potentials.append(potentials[-1] if value is None else max(potentials[-1], value))
    return potentials


def shaped_rewards(rewards: Sequence[float], potentials: Sequence[float], gamma: float = 1.0) -> list[float]:
    """An episode's own rewards with a potential's shaping added, which leaves the best policies what they were.

        r'_t = r_t + gamma * Phi_(t+1) - Phi_t,    Phi_T = 0

    Whatever the potential, the discounted sum changes by -Phi_0, the same for every trajectory from the same start: so
    the end's potential counts as 0, whatever is given for it. `BestSoFar`, in contrast, pays the potential itself.

    Range: that of the rewards, widened by that of the potential either way.
    Source: Ng, Harada, Russell: Policy invariance under reward transformations, ICML 1999, theorem 1; for episodes that
    end, Grzes: Reward shaping in episodic reinforcement learning, AAMAS 2017.

    Args:
        rewards: of the turns.
        potentials: of the states before the first turn and after each, one more than there are turns.
        gamma: discount of the learner.

    Raises:
        ValueError: the numbers of rewards and potentials do not fit.

    Example:
        >>> shaped_rewards([0.0, 0.0, 1.0], potentials=[0.0, 0.5, 0.5, 1.0])
        [0.5, 0.0, 0.5]
    """
    if len(potentials) != len(rewards) + 1:
        raise ValueError(f"{len(rewards)} turns have {len(rewards) + 1} potentials, got {len(potentials)}")
    after = [*potentials[1:-1], 0.0]
    return [
        reward + shaping_reward(here, there, gamma)
        for reward, here, there in zip(rewards, potentials[:-1], after, strict=True)
    ]


@dataclass(frozen=True)
class BestSoFar(RecordedReward):
    """A reward whose turns are paid by what they add to the best submission so far.

    As a function of one `Feedback` it is the value of that submission alone; an `EpisodeScore` pays the differences.

    Attributes:
        value: the value of one submission.
        gamma: discount of the learner; with 1 the pay of an episode is the value of its best submission.

    Range of one turn: [-(1 - gamma) * m, m], where m is the greatest value.
    Source: Ng, Harada, Russell, ICML 1999; see the module.

    Example:
        >>> from .default import LadderThenPerformance
        >>> from .examples import failed, timed
        >>> score = EpisodeScore(BestSoFar(LadderThenPerformance()))
        >>> turns = [failed("runtime_error"), timed(speedup_low=1.0), failed("compile_error"), timed(speedup_low=1.0)]
        >>> [score.add(turn).reward for turn in turns]
        [0.2, 0.8, 0.0, 0.0]
        >>> score.total
        1.0
    """

    value: Reward
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {self.gamma}")

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        return value_of(self.value, feedback)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`: those of the value."""
        return self.value.parts(feedback) if isinstance(self.value, ItemisedReward) else {}


@dataclass(frozen=True)
class TurnScore:
    """The score of one turn.

    Attributes:
        reward: of the turn; 0 where it is not valid.
        value: of this submission alone; None where the evaluator failed.
        parts: named summands of the value, where its reward has any.
    """

    reward: float
    value: float | None
    parts: dict[str, float]

    @property
    def is_valid(self) -> bool:
        """Whether something can be learnt from it: False where the evaluator failed."""
        return self.value is not None


class EpisodeScore:
    """Scores the turns of one episode, one after another.

    `BestSoFar` pays what a turn adds; any other reward pays each turn the value of its submission.

    Attributes:
        total: sum of the turns' rewards, undiscounted.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._potential = INITIAL_POTENTIAL
        self.total = 0.0

    def add(self, feedback: Feedback) -> TurnScore:
        """Scores the next turn. A failure of the evaluator leaves everything as it was.

        Raises:
            ConfigError: the reward returned something else than a finite number or None.
        """
        value = value_of(self._reward, feedback)
        if value is None:
            return TurnScore(reward=0.0, value=None, parts={})
        parts = {}
        if isinstance(self._reward, ItemisedReward):
            parts = checked_parts(self._reward, self._reward.parts(feedback))
        paid = value
        if isinstance(self._reward, BestSoFar):
            potential = max(self._potential, value)
            paid = shaping_reward(self._potential, potential, self._reward.gamma)
            self._potential = potential
        self.total += paid
        return TurnScore(reward=paid, value=value, parts=parts)
