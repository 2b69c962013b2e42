"""The right share of an answer. Almost right always earns less than right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_caught, is_infrastructure_failure, is_right

Share: TypeAlias = Literal["outputs", "elements", "trials", "ranks"]
"""The unit of counting: whole outputs of each rank and trial, their elements, whole trials, or whole ranks."""


@dataclass(frozen=True)
class PartialCorrectness(Component):
    """The share of an answer that is right, and 1 for one that is right altogether.

        r = 0               not yet compared, or caught cheating
        r = almost * share  compared, and wrong somewhere
        r = almost          every checked output was right, and it failed later (timing, profiling)
        r = 1               right

    A share of outputs rewards only whole outputs; a share of elements rewards an output of zeros for doing nothing.
    Shares of trials and ranks separate a race, or one wrong rank, from an error everywhere. A trial or rank counts as
    right only if that is proven: the report lists the first few wrong outputs, and each further one counts as a wrong
    trial and rank of its own.

    Range: [0, almost] and {1}. Source: own; the share of passed tests is common where programs are learnt.

    Attributes:
        of: the unit of the share.
        almost: value of an answer that failed later, and factor of the share; below 1.

    Example:
        >>> from .examples import failed, timed
        >>> wrong = failed("output_mismatch", right_share=0.5)
        >>> PartialCorrectness()(wrong), PartialCorrectness(of="elements")(wrong), PartialCorrectness()(timed())
        (0.25, 0.375, 1.0)
        >>> PartialCorrectness(of="trials")(failed("output_mismatch", right_share=0.99))
        0.375
    """

    of: Share = "outputs"
    almost: float = 0.5

    def __post_init__(self) -> None:
        if self.of not in SHARES:
            raise ValueError(f"of must be one of {', '.join(SHARES)}, got {self.of!r}")
        if not 0 <= self.almost < 1:
            raise ValueError(f"almost right must earn less than right: 0 <= almost < 1, got {self.almost}")

    def __call__(self, feedback: Feedback) -> float | None:
        """See `Reward`."""
        if is_infrastructure_failure(feedback):
            return None
        if is_right(feedback):
            return 1.0
        if is_caught(feedback) or feedback.check is None or feedback.stage is None:
            return 0.0
        if feedback.stage.order > Stage.RUN.order:
            return self.almost
        return self.almost * min(1.0, max(0.0, SHARES[self.of](feedback.check, feedback)))

    def bounds(self) -> Bounds:
        """See `Component`."""
        return 0.0, 1.0


def right_share(feedback: Feedback, of: Share) -> float:
    """The share that is right, in [0, 1]; 0 where nothing was compared.

    Example:
        >>> from .examples import failed
        >>> right_share(failed("output_mismatch", right_share=0.25), "outputs")
        0.25
    """
    return 0.0 if feedback.check is None else min(1.0, max(0.0, SHARES[of](feedback.check, feedback)))


def _outputs(check: CheckReport, _: Feedback) -> float:
    return _ratio(check.outputs_right, check.outputs_compared)


def _elements(check: CheckReport, _: Feedback) -> float:
    return _ratio(check.elements_right, check.elements_compared)


def _trials(check: CheckReport, _: Feedback) -> float:
    return _ratio(check.trials - _wrong(check, lambda one: one.trial), check.trials)


def _ranks(check: CheckReport, feedback: Feedback) -> float:
    world_size = feedback.config.world_size
    return _ratio(world_size - _wrong(check, lambda one: one.rank), world_size)


def _wrong(check: CheckReport, group: Callable[[Mismatch], int]) -> int:
    """Most groups (trials or ranks) that can have something wrong in them."""
    listed = {(one.trial, one.rank, one.output) for one in check.mismatches if one.reason != "input_modified"}
    left_out = max(0, check.outputs_compared - check.outputs_right - len(listed))
    return len({group(one) for one in check.mismatches}) + left_out


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


SHARES: dict[str, Callable[[CheckReport, Feedback], float]] = {
    "outputs": _outputs,
    "elements": _elements,
    "trials": _trials,
    "ranks": _ranks,
}
