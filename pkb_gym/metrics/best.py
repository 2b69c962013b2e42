"""The best kernel of each problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.conditions import Conditions
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, speedup_over
from pkb_gym.rewards.reward import is_right


@dataclass(frozen=True)
class BestKernel:
    """A right kernel.

    Attributes:
        attempt: Attempt that submitted the kernel.
        source: Text of the kernel.
        feedback: Feedback of its evaluation.
        value: Lower end of its speedup's interval; 0 where it was not timed.
        among: Number of right kernels that it was chosen from.
        configurations: Number of `Conditions` under which these were measured.
    """

    attempt: Attempt
    source: str
    feedback: Feedback
    value: float
    among: int
    configurations: int

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds it."""
        return {"cpp": "cpp", "cuda": "cu"}.get(self.feedback.config.language, "py")


def best_kernels(attempts: Iterable[Attempt], baseline: Baseline = "better") -> list[BestKernel]:
    """The best right kernel of each problem and kind of file, by problem.

    The lower end of the speedup's interval decides, so that the luckiest of many equal kernels gains nothing from being
    the luckiest; of equal ones the first counts.

    Args:
        attempts: Attempts of any agents.
        baseline: Baseline of the speedups.
    """
    found: dict[tuple[str, str], list[BestKernel]] = {}
    for attempt in attempts:
        feedback, source = attempt.feedback, attempt.source
        if feedback is None or source is None or not is_right(feedback):
            continue
        timing = feedback.timing
        value = 0.0 if timing is None else speedup_over(timing, baseline, "low")
        kernel = BestKernel(attempt, source, feedback, value, among=1, configurations=1)
        found.setdefault((attempt.problem, kernel.suffix), []).append(kernel)
    chosen = []
    for kernels in (found[key] for key in sorted(found)):
        best = max(kernels, key=lambda kernel: kernel.value)
        kinds = {Conditions.of_feedback(kernel.feedback) for kernel in kernels}
        chosen.append(
            BestKernel(best.attempt, best.source, best.feedback, best.value, len(kernels), configurations=len(kinds))
        )
    return chosen
