"""Counts of compared results, by form and by group."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.random_ptx.comparison import Compared, Difference

MOST_EXAMPLES = 8


@dataclass
class Tally:
    """Of one form."""

    group: str
    bound: str = ""
    compared: int = 0
    different: int = 0
    within_bound: int = 0
    examples: list[Difference] = field(default_factory=list)

    def add(self, each: Compared) -> None:
        """Counts one use."""
        self.compared += each.compared
        self.different += each.different
        self.within_bound += each.within
        nan_only = sum(example.both_nan for example in self.examples)
        if each.example and (len(self.examples) < MOST_EXAMPLES or (nan_only and not each.example.both_nan)):
            if len(self.examples) >= MOST_EXAMPLES:
                self.examples.remove(next(example for example in self.examples if example.both_nan))
            self.examples.append(each.example)


def summary(tallies: dict[str, Tally]) -> dict[str, dict[str, int]]:
    """Of each group: forms, results compared, different, and within an error bound."""
    groups: dict[str, dict[str, int]] = {}
    for tally in tallies.values():
        counts = groups.setdefault(tally.group, {"forms": 0, "compared": 0, "different": 0, "within_bound": 0})
        counts["forms"] += 1
        counts["compared"] += tally.compared
        counts["different"] += tally.different
        counts["within_bound"] += tally.within_bound
    return groups
