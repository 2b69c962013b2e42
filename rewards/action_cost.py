"""The cost of a language model's reply by its length and its form.

A `Feedback` knows nothing of the text that a submission was taken from, so these costs are functions of `ActionFacts`,
and `Charged` joins them with a reward. Keep them small: Kevin (arXiv:2507.11948) reports that a length penalty degraded
training, and a cost must never lift a wrong kernel above a right one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.fences import fenced_blocks
from pkb_gym.rewards.component import Component, Recorded, RecordedReward


@dataclass(frozen=True)
class ActionFacts:
    r"""The parts of a reply that its costs depend on.

    Attributes:
        characters: length of the whole reply.
        source_bytes: of the kernel's source in UTF-8: the last fenced block, or without one the whole reply.
        fenced_blocks: how many blocks there are.

    Example:
        >>> ActionFacts.of("Here it is:\n```cpp\nint x;\n```\n")
        ActionFacts(characters=30, source_bytes=7, fenced_blocks=1)
    """

    characters: int
    source_bytes: int
    fenced_blocks: int

    def __post_init__(self) -> None:
        if min(self.characters, self.source_bytes, self.fenced_blocks) < 0:
            raise ValueError(f"lengths and counts cannot be negative, got {self}")

    @classmethod
    def of(cls, reply: str) -> ActionFacts:
        """The facts of a reply."""
        blocks = fenced_blocks(reply).blocks
        source = blocks[-1] if blocks else reply
        return cls(len(reply), len(source.encode("utf-8", "surrogatepass")), len(blocks))


class ActionCost(Recorded, ABC, abstract=True):
    """A cost of a reply, in [0, `greatest`]."""

    @abstractmethod
    def __call__(self, facts: ActionFacts) -> float:
        """The cost of the reply."""

    @property
    @abstractmethod
    def greatest(self) -> float:
        """The most that any reply costs."""


@dataclass(frozen=True)
class LengthCost(ActionCost):
    """Nothing up to a length, then in proportion, up to all of the weight at another.

        cost = weight * min(1, max(0, (characters - free) / (full - free)))

    Range: [0, weight].
    Source: own; the form is that of DAPO's soft punishment of overlong replies (Yu et al., arXiv:2503.14476, section
    3.4), which counts tokens.

    Example:
        >>> cost = LengthCost(weight=0.1, free=1000, full=3000)
        >>> [cost(ActionFacts(characters, characters, 1)) for characters in (500, 2000, 9000)]
        [0.0, 0.05, 0.1]
    """

    weight: float = 0.05
    free: int = 20_000
    full: int = 60_000

    def __post_init__(self) -> None:
        _refuse_weight(self.weight)
        if not 0 <= self.free < self.full:
            raise ValueError(f"0 <= free < full is needed, got {self.free} and {self.full}")

    def __call__(self, facts: ActionFacts) -> float:
        """See `ActionCost`."""
        return self.weight * min(1.0, max(0.0, (facts.characters - self.free) / (self.full - self.free)))

    @property
    def greatest(self) -> float:
        """See `ActionCost`."""
        return self.weight


@dataclass(frozen=True)
class FormatCost(ActionCost):
    r"""Nothing for a reply whose source stands in exactly one fenced block, else the weight.

        cost = weight * [fenced_blocks != 1]

    Range: {0, weight}. Source: own; format rewards are as old as DeepSeek-R1 (arXiv:2501.12948, section 2.2.2).

    Example:
        >>> cost = FormatCost(weight=0.05)
        >>> cost(ActionFacts.of("```cpp\nint x;\n```")), cost(ActionFacts.of("int x;"))
        (0.0, 0.05)
    """

    weight: float = 0.05

    def __post_init__(self) -> None:
        _refuse_weight(self.weight)

    def __call__(self, facts: ActionFacts) -> float:
        """See `ActionCost`."""
        return 0.0 if facts.fenced_blocks == 1 else self.weight

    @property
    def greatest(self) -> float:
        """See `ActionCost`."""
        return self.weight


@dataclass(frozen=True)
class Charged(RecordedReward):
    """A reward less what the reply cost that the submission was taken from.

        r = value(feedback) - sum of costs(facts)

    As a function of a `Feedback` alone it is the value: where no text is known, as with kernels written by hand,
    nothing is charged. An infrastructure failure stays None.

    Range: [least value - greatest costs, greatest value]. Source: own.

    Example:
        >>> from pkb_gym.rewards import Correctness
        >>> from .examples import failed, timed
        >>> reward = Charged(Correctness(), (FormatCost(0.05),))
        >>> plain = ActionFacts.of("int x;")
        >>> reward.charge(timed(), plain), reward(timed()), reward.charge(failed("infrastructure"), plain)
        (0.95, 1.0, None)
    """

    value: Component
    costs: tuple[ActionCost, ...]

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`: the value without costs."""
        return self.value(feedback)

    def charge(self, feedback: Feedback, facts: ActionFacts) -> float | None:
        """The value less the costs."""
        value = self.value(feedback)
        return None if value is None else value - sum(cost(facts) for cost in self.costs)

    def bounds(self) -> tuple[float, float]:
        """Least and greatest of what `charge` gives."""
        low, high = self.value.bounds()
        return low - sum(cost.greatest for cost in self.costs), high

    def parts(self, feedback: Feedback) -> Mapping[str, float]:
        """See `ItemisedReward`: those of the value."""
        return self.value.parts(feedback)


def _refuse_weight(weight: float) -> None:
    if not 0 <= weight < float("inf"):
        raise ValueError(f"a cost's weight must be finite and not negative, got {weight}")
