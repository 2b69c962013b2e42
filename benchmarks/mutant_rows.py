"""Rows of the study of mutants: the verdicts on each kernel, and results put together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

from benchmarks.cpp_operations import Kind
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.atomic_write import write_atomically

NO_VERDICT = frozenset(
    {Failure.INFRASTRUCTURE, Failure.COMPILE_ERROR, Failure.COMPILED_ONLY, Failure.LOAD_ERROR, Failure.REJECTED}
)


@dataclass(frozen=True)
class Row:
    """The verdicts on one kernel, or on one of its mutants.

    Attributes:
        problem: its name.
        mutant: the operations that are missing; "" for the unchanged expert.
        kind: of these operations; "" for the expert.
        size: that it is judged at; None where the mutated operation is not come to at any.
        world_size: ranks.
        digest: of the expert with its headers.
        equivalent: why the mutant is right all the same, or None.
        unreached: why no rank comes to the operation at any size, or None.
        evaluations: how often it was judged.
        refused: how often it did not pass.
        failures: evaluations by failure or finding.
        not_judged: evaluations that say nothing of it: it did not compile, or this machine failed; not counted above.
        message: of the first evaluation that it did not pass; "" if none.
        commit: of the evaluations, the first of them, where it is not that of the whole result.
    """

    problem: str
    mutant: str
    kind: str
    size: str | None
    world_size: int
    digest: str
    equivalent: str | None = None
    unreached: str | None = None
    evaluations: int = 0
    refused: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    not_judged: int = 0
    message: str = ""
    commit: str | None = None

    @property
    def key(self) -> tuple[str, str, str | None, int, str]:
        """The key of a row."""
        return self.problem, self.mutant, self.size, self.world_size, self.digest

    @property
    def is_wrong(self) -> bool:
        """Whether it breaks the call contract, in a way that a run shows."""
        return bool(self.mutant) and self.equivalent is None and self.kind != Kind.FENCE

    @property
    def is_as_expected(self) -> bool:
        """Wrong mutants are always refused, experts and equivalent mutants never, and all have been judged.

        Only a mutant whose operation no size comes to needs no evaluation.
        """
        if not self.evaluations:
            return self.size is None and not self.not_judged
        return self.kind == Kind.FENCE or self.refused == (self.evaluations if self.is_wrong else 0)

    def plus(self, later: Row) -> Row:
        """The evaluations of two runs of the same kernel, under the earlier one's commit."""
        return replace(
            later,
            evaluations=self.evaluations + later.evaluations,
            refused=self.refused + later.refused,
            failures=dict(Counter(self.failures) + Counter(later.failures)),
            not_judged=self.not_judged + later.not_judged,
            message=self.message or later.message,
            commit=(self.commit if self.evaluations else None) or later.commit,
        )

    def with_verdict(self, feedback: Feedback) -> Row:
        """One evaluation more."""
        if feedback.failure in NO_VERDICT:
            return replace(self, not_judged=self.not_judged + 1, message=self.message or feedback.message[:400])
        if feedback.passed:
            return replace(self, evaluations=self.evaluations + 1)
        reason = str(feedback.failure or ", ".join(sorted({finding.code for finding in feedback.integrity})))
        return replace(
            self,
            evaluations=self.evaluations + 1,
            refused=self.refused + 1,
            failures=dict(Counter(self.failures) + Counter([reason])),
            message=self.message or feedback.message[:400],
        )


def merge(paths: Sequence[Path], folder: Path) -> None:
    """Writes the rows of several results as one: head and name are the last one's, commands and sizes those of all.

    Evaluations of the same kernel, headers included, are added up. Where a problem's kernel differs, the last result
    that has it counts. A mutant for which one result has found a size has no row without one. Rows with evaluations of
    other commits than the last result's name the first of them.

    Raises:
        SystemExit: they are not of one sort.
    """
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for name in ("device", "world_size", "until", "ranks_per_gpu"):
        if len({str(result.get(name)) for result in results}) > 1:
            raise SystemExit(f"{name} differs: {', '.join(str(result.get(name)) for result in results)}")
    head = results[-1]
    merged: dict[tuple[str, str, str | None, int, str], Row] = {}
    for path, result in zip(paths, results, strict=True):
        own = None if result["commit"] == head["commit"] else result["commit"]
        rows = [replace(row, commit=row.commit or own) for row in load(path)]
        digests = {row.problem: row.digest for row in rows}
        merged = {key: row for key, row in merged.items() if digests.get(row.problem, row.digest) == row.digest}
        merged |= {row.key: merged[row.key].plus(row) if row.key in merged else row for row in rows}
    sized = {replace(row, size=None).key for row in merged.values() if row.size is not None}
    kept = [row for row in merged.values() if row.size is not None or row.key not in sized]
    rows = sorted(kept, key=lambda row: (row.problem, row.mutant, row.size or ""))
    about: dict[str, object] = {"command": " & ".join(result["command"] for result in results)}
    about["sizes"] = list(dict.fromkeys(chain(*(result["sizes"] for result in results))))
    if "gpus" in head:  # of each machine
        about["gpus"] = list(chain(*dict.fromkeys(tuple(result["gpus"]) for result in results)))
    about["rows"] = [asdict(row) for row in rows]
    write_atomically(folder / paths[-1].name, json.dumps(head | about, indent=1) + "\n")


def load(path: Path) -> list[Row]:
    """The rows of a result."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
