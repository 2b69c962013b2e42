"""The mechanism by which a right kernel moves data between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.mechanisms import Mechanism
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right


@dataclass(frozen=True)
class UsesMechanism(Component):
    """1 for a right kernel that moved data by one of these mechanisms and by none of those, else 0.

        r = [right, used and wanted have something in common, used and unwanted have nothing]

    A bonus for mechanisms that the baseline does not use, by default all but NCCL. Its weight should be small: the time
    counts in the end. The profile is not exact: a kernel that uses TMA for its own memory alone is listed with TMA. On
    the CPU no mechanism is listed, so that the value is 0. And it rests on what ranks report, which can be forged.

    Range: {0, 1}. Source: own; the mechanisms are those of `Profile.mechanisms`.

    Example:
        >>> from .examples import failed, profiled
        >>> bonus = UsesMechanism()
        >>> bonus(profiled(mechanisms=("TMA",))), bonus(profiled(mechanisms=("TMA", "NCCL"))), bonus(failed("timeout"))
        (1.0, 0.0, 0.0)
    """

    untrusted: ClassVar[bool] = True
    wanted: tuple[Mechanism, ...] = ("copy engine", "SM load/store", "TMA")
    unwanted: tuple[Mechanism, ...] = ("NCCL",)

    def __post_init__(self) -> None:
        for name in (*self.wanted, *self.unwanted):
            if name not in get_args(Mechanism):
                raise ValueError(f"no mechanism {name!r}; there are {', '.join(get_args(Mechanism))}")

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        if is_infrastructure_failure(feedback):
            return None
        if feedback.profile is None or not is_right(feedback):
            return 0.0
        used = set(feedback.profile.mechanisms)
        return float(not used.isdisjoint(self.wanted) and used.isdisjoint(self.unwanted))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0


@dataclass(frozen=True)
class OwnCommunication(Component):
    """1 unless a submission calls, or may call, the collectives of the baseline's library; a condition for `where`.

        r = [calls_torch_distributed is not True, and is known for a source in Python]

    Seen are names in the text, traffic of the ranks' network, which the evaluator counts on the CPU, and NCCL's kernels
    in the profile of a GPU. A profile can be forged, and so the absence of NCCL's kernels proves nothing on GPUs.

    Range: {0, 1}. Source: own; the evidence is that of `Feedback.calls_torch_distributed`.

    Example:
        >>> from .examples import timed
        >>> OwnCommunication()(timed())
        1.0
    """

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        if is_infrastructure_failure(feedback):
            return None
        calls = feedback.calls_torch_distributed
        return float(calls is False or (calls is None and feedback.config.dialect == "native"))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0
