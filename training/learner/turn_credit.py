"""Credit for each turn of a rollout, and the advantage of each of its tokens.

An episode's values (one for each turn) become returns, the returns of a group of episodes become advantages, and every
token of a turn's message gets the advantage of that turn:

     prompt | assistant: turn 0 | tool | assistant: turn 1 | tool | assistant: turn 2, a malformed call
            |  A0  A0  A0  A0   |  0 0 |  A1  A1  A1       |  0 0 |  A2  A2  A2

Every message of the policy is a turn. One without a submission (a malformed call, or closing words) has the empty value
and never the advantage of a message that submitted: credits by turn give it a return of its own, those of the whole
episode (`OF_EPISODE`) give it advantage 0. An episode without any submission has the empty value for all its messages.
The environment's tokens have no advantage, and no loss either.

Negative advantages may weigh less (`negative_weight` w < 1). With A+ and A- for the positive and the negative part,

    E[(A+ + w A-) grad log p] = w * grad J + (1 - w) * E[A+ grad log p]

a mixture of the policy gradient and of imitating the better replies of a group. It is a biased estimate of grad J: a
negative advantage shows where probability should leave, and not where it should go, which a policy of low entropy pays
for with its other replies. Source: Arnal et al., Asymmetric REINFORCE for off-policy reinforcement learning,
arXiv:2506.20520; Le Roux et al., Tapered off-policy REINFORCE, arXiv:2503.14286.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Literal, TypeAlias

import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards.advantages import Advantages, Group, Over, group_relative, leave_one_out
from pkb_gym.rewards.returns import (
    KEVIN_GAMMA,
    Values,
    best_of_episode,
    discounted_max,
    discounted_sum,
    first_turn_anchored,
    improvement_ahead,
    improvement_only,
    last_of_episode,
    own_value,
)

Returns: TypeAlias = Callable[[Values], list[float | None]]

CreditName: TypeAlias = Literal[
    "outcome",
    "own_value",
    "discounted_sum",
    "discounted_max",
    "best_of_episode",
    "last_of_episode",
    "improvement_only",
    "improvement_ahead",
    "first_turn_anchored",
]
AdvantageName: TypeAlias = Literal["group_relative", "group_mean", "leave_one_out"]

DISCOUNTED: dict[str, Callable[[float], Returns]] = {
    "discounted_sum": lambda gamma: partial(discounted_sum, gamma=gamma),
    "discounted_max": lambda gamma: partial(discounted_max, gamma=gamma),
    "improvement_ahead": lambda gamma: partial(improvement_ahead, gamma=gamma),
}
UNDISCOUNTED: dict[str, Returns] = {
    "own_value": own_value,
    "best_of_episode": best_of_episode,
    "last_of_episode": last_of_episode,
    "improvement_only": improvement_only,
    "first_turn_anchored": first_turn_anchored,
}


def outcome(values: Values) -> list[float | None]:
    """The best value of the episode, once: the whole rollout is one action, whatever turns it has.

    Example:
        >>> outcome([0.0, 1.0, 0.5])
        [1.0]
    """
    return best_of_episode(values)[:1]


OF_EPISODE: tuple[Returns, ...] = (outcome, best_of_episode, last_of_episode)
"""Credits that give one value to every turn of an episode."""


@dataclass(frozen=True)
class Credit:
    """Function from the values of a group's turns to their advantages.

    Attributes:
        returns: Function from the values of an episode's turns to their returns.
        advantages: Function from the returns of a group's turns to their advantages.
        negative_weight: Factor of negative advantages, from 0 to 1.
    """

    returns: Returns
    advantages: Callable[[Group], Advantages]
    negative_weight: float = 1.0

    def of_group(
        self, episodes: Sequence[Values], submitted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[float]]:
        """The advantages of each episode's turns; 0 where the fault was ours, and such episodes count for nobody.

        Args:
            episodes: Values of the turns of all rollouts of one prompt.
            submitted: Whether each turn submitted anything; None where all did.

        Returns:
            One advantage for each turn.

        Example:
            >>> by_turn, of_episode = find_credit("own_value", "group_mean"), find_credit("outcome", "group_mean")
            >>> values, submitted = [[1.0, 0.0], [0.5, 0.5]], [[True, False], [True, True]]
            >>> by_turn.of_group(values, submitted), of_episode.of_group(values, submitted)
            ([[0.25, -0.25], [-0.25, 0.25]], [[0.25, 0.0], [-0.25, -0.25]])
        """
        return [[self._weighed(turn) for turn in turns] for turns in self._unweighed(episodes, submitted)]

    def _weighed(self, advantage: float) -> float:
        return advantage if advantage >= 0 else self.negative_weight * advantage

    def _unweighed(self, episodes: Sequence[Values], submitted: Sequence[Sequence[bool]] | None) -> list[list[float]]:
        made = [[True] * len(values) for values in episodes] if submitted is None else submitted
        if self.returns not in OF_EPISODE:
            return [_filled(turns) for turns in self.advantages([self.returns(values) for values in episodes])]
        shares = [turns if any(turns) else [True] * len(turns) for turns in made]
        returns = [self.returns(list(compress(*row))) for row in zip(episodes, shares, strict=True)]
        if self.returns is outcome:  # one action, whatever turns it has
            found = self.advantages(returns)
            return [
                [_filled(one)[0] if share else 0.0 for share in row] for one, row in zip(found, shares, strict=True)
            ]
        found = self.advantages([_placed(of, share) for of, share in zip(returns, shares, strict=True)])
        return [_filled(turns) for turns in found]


def _filled(turns: Sequence[float | None]) -> list[float]:
    return [0.0 if advantage is None else advantage for advantage in turns]


def _placed(returns: Sequence[float | None], shares: Sequence[bool]) -> list[float | None]:
    """The returns at the turns that have a share in them, None at the others."""
    rest = iter(returns)
    return [next(rest) if share else None for share in shares]


def find_credit(
    returns: CreditName = "improvement_only",
    advantages: AdvantageName = "leave_one_out",
    *,
    gamma: float = KEVIN_GAMMA,
    over: Over = "turn",
    negative_weight: float = 1.0,
) -> Credit:
    """Credit by the names of its parts, which `pkb_gym.rewards.returns` and `advantages` document.

    Args:
        returns: "outcome", or the name of the return of a turn.
        advantages: Name of the advantages; "group_mean" is `group_relative` without division by the standard deviation.
        gamma: Discount of later turns, for `discounted_sum`, `discounted_max` and `improvement_ahead` alone.
        over: Turns that a turn is compared with: those of the same number, or all turns of the group.
        negative_weight: Factor of negative advantages, from 0 to 1.

    Raises:
        ConfigError: there is no such name, or the weight lies outside.
    """
    check_negative_weight(negative_weight)
    if returns in DISCOUNTED:
        of_turns = DISCOUNTED[returns](gamma)
    elif returns == "outcome":
        of_turns = outcome
    elif returns in UNDISCOUNTED:
        of_turns = UNDISCOUNTED[returns]
    else:
        raise ConfigError(f"no credit {returns!r}; there are outcome, {', '.join([*UNDISCOUNTED, *DISCOUNTED])}")
    comparisons: dict[str, Callable[[Group], Advantages]] = {
        "group_relative": partial(group_relative, over=over),
        "group_mean": partial(group_relative, normalise=False, over=over),
        "leave_one_out": partial(leave_one_out, over=over),
    }
    if advantages not in comparisons:
        raise ConfigError(f"no advantages {advantages!r}; there are {', '.join(comparisons)}")
    return Credit(of_turns, comparisons[advantages], negative_weight)


def check_negative_weight(weight: float) -> None:
    """Refuses a weight of negative advantages that is none.

    Raises:
        ConfigError: it lies outside of 0 to 1.
    """
    if not 0.0 <= weight <= 1.0:
        raise ConfigError(
            f"negative_weight must lie between 0 (they count for nothing) and 1 (as they are), got {weight:g}"
        )


def is_uniform(group: Sequence[Sequence[float]]) -> bool:
    """Whether a group of episodes has no advantage but 0, so that nothing can be learnt from it.

    Args:
        group: Advantages of the turns, for each episode.
    """
    return not any(advantage for turns in group for advantage in turns)


def token_advantages(turns: Sequence[Sequence[float]], assistant_mask: torch.Tensor) -> torch.Tensor:
    """Spreads the advantages of turns over the tokens of their messages.

    Args:
        turns: Advantages of the turns, at least one, for each rollout.
        assistant_mask: (B, T) integers, 1 where the policy wrote the token, 0 where the environment did, or nobody.

    Returns:
        (B, T) float32 on the device of the mask, 0 where the mask is.

    Example:
        >>> token_advantages([[0.5, -1.0]], torch.tensor([[1, 1, 0, 1, 0, 1, 0]]))
        tensor([[ 0.5000,  0.5000,  0.0000, -1.0000,  0.0000, -1.0000,  0.0000]])
    """
    mask = assistant_mask.long()
    begins = torch.diff(mask, dim=1, prepend=mask.new_zeros(len(mask), 1)) == 1
    message = (begins.cumsum(dim=1) - 1).clamp(min=0)
    last = torch.tensor([len(advantages) - 1 for advantages in turns], device=mask.device).unsqueeze(1)
    most = max(len(advantages) for advantages in turns)
    padded = [[*advantages, *[0.0] * (most - len(advantages))] for advantages in turns]
    table = torch.tensor(padded, dtype=torch.float32, device=mask.device)
    return table.gather(1, message.clamp(max=last)).masked_fill(mask == 0, 0.0)
