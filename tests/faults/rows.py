"""What the fault drill found: one row for each fault, counted and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.faults.targets import Through


@dataclass(frozen=True)
class Row:
    """Kills of one kind, or repetitions of one other fault.

    Attributes:
        fault: Name of the fault.
        through: Kind of the target, evaluator or service.
        times: Number of faults.
        evaluations: Number of evaluations under way.
        right: Number of these that ended with their verdict at once.
        retried: Number of these that ended as `infrastructure`, and with their verdict when judged again.
        wrong: Descriptions of all others.
    """

    fault: str
    through: Through
    times: int = 0
    evaluations: int = 0
    right: int = 0
    retried: int = 0
    wrong: list[str] = field(default_factory=list)

    def with_fault(self, evaluations: int, right: int, retried: int, wrong: Sequence[str]) -> Row:
        """One fault more."""
        return replace(
            self,
            times=self.times + 1,
            evaluations=self.evaluations + evaluations,
            right=self.right + right,
            retried=self.retried + retried,
            wrong=[*self.wrong, *wrong],
        )


def is_sound(rows: Sequence[Row], left_over: Sequence[str]) -> bool:
    """Whether no verdict was wrong and nothing was left behind."""
    return not left_over and not any(row.wrong for row in rows)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as text."""
    yield f"{'fault':<28} {'through':<10} {'times':>5} {'judged':>6} {'right':>5} {'retried':>7} {'wrong':>5}"
    for row in rows:
        counts = f"{row.times:>5} {row.evaluations:>6} {row.right:>5} {row.retried:>7} {len(row.wrong):>5}"
        yield f"{row.fault:<28} {row.through:<10} {counts}"


def report(rows: Sequence[Row], struck: int, left_over: Sequence[str]) -> int:
    """Prints what came of it; 0 if all is sound."""
    print("\n".join(table(rows)))
    print(f"{struck} kills; left over: {', '.join(left_over) or 'nothing'}")
    return 0 if is_sound(rows, left_over) else 1
