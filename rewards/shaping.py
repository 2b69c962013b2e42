"""Rewards over the turns of an episode: potential-based shaping over the best submission so far.

The value of an episode is that of its best submission. Paid at the end alone, that is sparse; potential-based shaping
(Ng, Harada, Russell: Policy invariance under reward transformations, ICML 1999) pays it as it comes without changing
which policies are best. With the potential Phi = value of the best submission so far, turn t is paid

    F_t = gamma * Phi_t - Phi_(t-1),    Phi_0 = 0

and the discounted sum over T turns telescopes to gamma^T * Phi_T. A worse submission changes nothing of it, the same
one again earns nothing, and going down and up again earns nothing either. So no turn after the first best one counts,
with one exception, which lies outside of the potential: a submission of negative value v, which is worse than none at
all, is paid

    v - Phi_(t-1)

in addition and for good. By the default that is a breach of the call contract (`Ladder.breach`): a kernel without one
of its synchronisations, tried after a right one, would else cost nothing when it is caught. It costs in every turn what
it costs in the first: the value of the right kernel that might have been submitted in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.reward import ItemisedReward, Reward
from pkb_gym.rewards.user_rewards import checked_parts, value_of

INITIAL_POTENTIAL = 0.0
"""Phi_0: the value of no submission at all."""


def penalty(best: float, value: float) -> float:
    """One turn's pay outside of the potential, at most 0: the value of a submission worse than none, less the best.

    Example:
        >>> penalty(1.0, -0.25), penalty(1.0, 0.0)
        (-1.25, 0.0)
    """
    return value - best if value < INITIAL_POTENTIAL else 0.0


def shaping_reward(previous: float, current: float, gamma: float) -> float:
    """One turn's pay, gamma * Phi(current state) - Phi(previous state).

    Example:
        >>> shaping_reward(0.25, 1.0, gamma=1.0)
        0.75
    """
    return gamma * current - previous


@dataclass(frozen=True)
class BestSoFar(Recorded):
    """A reward whose turns are paid by what they add to the best submission so far.

    As a function of one `Feedback` it is the value of that submission alone; an `EpisodeScore` pays the differences.

    Attributes:
        value: Reward of one submission.
        gamma: Discount of the learner, in (0, 1]; with 1 the return of an episode is the value of its best submission,
            less the penalties.

    Range of one turn: [low - m, m], where m is the greatest value and low the least, if negative; without negative
    values [-(1 - gamma) * m, m].
    Source: Ng, Harada, Russell, ICML 1999; see the module.

    Example:
        >>> from .default import LadderThenPerformance
        >>> from .examples import failed, timed
        >>> score = EpisodeScore(BestSoFar(LadderThenPerformance()))
        >>> turns = [failed("runtime_error"), timed(speedup_low=1.0), failed("compile_error"), failed("race")]
        >>> [score.add(turn).reward for turn in turns]
        [0.03, 0.97, 0.0, -1.35]
        >>> round(score.total, 2), score.penalties
        (-0.35, -1.35)
    """

    value: Reward
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {self.gamma}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return value_of(self.value, feedback)

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """The parts of the value."""
        return self.value.parts(feedback) if isinstance(self.value, ItemisedReward) else {}


@dataclass(frozen=True)
class TurnScore:
    """The score of one turn.

    Attributes:
        reward: Reward of the turn; 0 where it is not valid.
        value: Value of this submission alone; None where the evaluator failed.
        parts: Named summands of the value, where its reward has any.
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
        total: Sum of the turns' rewards, undiscounted.
        penalties: Part of `total` that lies outside of the potential, at most 0; 0 but for `BestSoFar`.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._potential = INITIAL_POTENTIAL
        self.total = self.penalties = 0.0

    def add(self, feedback: Feedback) -> TurnScore:
        """Scores the next turn. A failure of the evaluator leaves everything as it was.

        Raises:
            ConfigError: The reward returned neither a finite number nor None.
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
            lost = penalty(self._potential, value)
            paid = shaping_reward(self._potential, potential, self._reward.gamma) + lost
            self._potential = potential
            self.penalties += lost
        self.total += paid
        return TurnScore(reward=paid, value=value, parts=parts)
