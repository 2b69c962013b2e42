"""Whether a submission communicates without the library of the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure


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
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        calls = feedback.calls_torch_distributed
        return float(calls is False or (calls is None and feedback.config.dialect == "native"))

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0
