"""The matrix of problems by agents: the best of each agent's samples of each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pkb_gym.engine.records.attempt import NO_SUBMISSION, REFUSED, TRUNCATED, Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.timing import Timing
from pkb_gym.metrics.figures import AgentFigures, ProblemFigures
from pkb_gym.report.categories import catalogue_counts, category_of
from pkb_gym.rewards.reward import is_right

CellKind: TypeAlias = Literal["faster", "right", "slower", "wrong", "nothing"]
"""What a cell shows at first sight: a right kernel whose speedup's interval lies above 1, includes 1 or is unknown, or
lies below 1; no right kernel; no kernel that was evaluated."""

NOT_EVALUATED = (NO_SUBMISSION, TRUNCATED, REFUSED, Failure.INFRASTRUCTURE.value)


class MatrixCell(Record):
    """One agent's samples of one problem."""

    samples: int
    """Number of judged samples."""
    right: int
    """Number of samples with a right kernel."""
    verdict: str
    """`passed` where a sample is right, else the most frequent verdict."""
    speedup: float | None
    """Best speedup over the eager baseline; None where no right kernel was timed."""
    speedup_low: float | None = None
    """Lower end of its 95 % interval."""
    speedup_high: float | None = None
    """Upper end of its 95 % interval."""
    converged: bool | None = None
    """Whether that interval became tight within the budget of the timing."""

    @property
    def kind(self) -> CellKind:
        """The kind of the cell."""
        if not self.right:
            return "nothing" if self.verdict in NOT_EVALUATED else "wrong"
        if self.speedup_low is not None and self.speedup_low > 1:
            return "faster"
        return "slower" if self.speedup_high is not None and self.speedup_high < 1 else "right"

    @property
    def text(self) -> str:
        """The best speedup, marked ≈ where its interval is not tight, or the verdict; right samples of all."""
        best = self.verdict.replace("_", " ") if self.speedup is None else f"{self.speedup:.2f}x"
        return f"{'≈' if self.converged is False else ''}{best} ({self.right}/{self.samples})"

    @property
    def title(self) -> str:
        """The same in a sentence."""
        title = f"{self.right} of {self.samples} samples right"
        if self.speedup is None:
            return f"{title}; {self.verdict}"
        interval = (
            "" if self.speedup_low is None else f", 95 % interval {self.speedup_low:.2f} to {self.speedup_high:.2f}"
        )
        loose = ", not tight within the budget" if self.converged is False else ""
        return f"{title}; best speedup {self.speedup:.2f}{interval}{loose}"


class MatrixRow(Record):
    """One problem."""

    problem: str
    category: str
    cells: tuple[MatrixCell | None, ...]
    """One cell for each agent, in the order of the agents; None where it did not answer."""


def problem_matrix(agents: Sequence[AgentFigures], attempts: Sequence[Attempt]) -> tuple[MatrixRow, ...]:
    """The rows by category, in the catalogue's order, then by name.

    Args:
        agents: Figures of the agents, a column each.
        attempts: Attempts that the figures were computed from.
    """
    timings: dict[tuple[str, str, float], Timing] = {}
    for attempt in attempts:
        feedback = attempt.feedback
        if feedback is not None and feedback.timing is not None and is_right(feedback):
            timings.setdefault((attempt.agent or "", attempt.problem, feedback.timing.speedup), feedback.timing)
    figures = [{problem.problem: problem for problem in each.problems} for each in agents]
    order = [*catalogue_counts()]
    rows = [
        MatrixRow(
            problem=name,
            category=category_of(name),
            cells=tuple(
                _cell(found, timings.get((each.agent, name, found.speedup or 0.0)))
                if (found := problems.get(name)) is not None
                else None
                for each, problems in zip(agents, figures, strict=True)
            ),
        )
        for name in {name for problems in figures for name in problems}
    ]
    place = {category: number for number, category in enumerate(order)}
    return tuple(sorted(rows, key=lambda row: (place.get(row.category, len(order)), row.problem)))


def _cell(found: ProblemFigures, timing: Timing | None) -> MatrixCell:
    return MatrixCell(
        samples=found.samples,
        right=found.right,
        verdict=found.verdict,
        speedup=found.speedup,
        speedup_low=None if timing is None else timing.speedup_low,
        speedup_high=None if timing is None else timing.speedup_high,
        converged=None if timing is None else timing.converged,
    )
