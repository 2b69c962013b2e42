"""By what means a right kernel moves data between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.mechanisms import Mechanism
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_our_fault, is_right


@dataclass(frozen=True)
class UsesMechanism(Component):
    """1 for a right kernel that moved data by one of these mechanisms and by none of those, else 0.

        r = [right, used and wanted have something in common, used and unwanted have nothing]

    A bonus for mechanisms that the baseline does not use, by default all but NCCL. Its weight should be small: the time
    counts in the end. The profile is not exact: a kernel that uses TMA for its own memory alone is listed with TMA. On
    the CPU no mechanism is listed, so that the value is 0.

    Range: {0, 1}. Source: own; the mechanisms are those of `Profile.mechanisms`.

    Example:
        >>> from .examples import failed, profiled
        >>> bonus = UsesMechanism()
        >>> bonus(profiled(mechanisms=("TMA",))), bonus(profiled(mechanisms=("TMA", "NCCL"))), bonus(failed("timeout"))
        (1.0, 0.0, 0.0)
    """

    wanted: tuple[Mechanism, ...] = ("copy engine", "SM load/store", "TMA")
    unwanted: tuple[Mechanism, ...] = ("NCCL",)

    def __post_init__(self) -> None:
        for name in (*self.wanted, *self.unwanted):
            if name not in get_args(Mechanism):
                raise ValueError(f"no mechanism {name!r}; there are {', '.join(get_args(Mechanism))}")

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        if is_our_fault(feedback):
            return None
        if feedback.profile is None or not is_right(feedback):
            return 0.0
        used = set(feedback.profile.mechanisms)
        return float(not used.isdisjoint(self.wanted) and used.isdisjoint(self.unwanted))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0
