"""The section of docs/robustness.md on kernels that lack a synchronisation, from benchmarks/results/mutants*.json."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for `benchmarks`, which is not installed
parts = load_module(HERE / "page_parts.py", "docs.page_parts")

RESULTS = HERE.parent / "benchmarks" / "results"
TITLE = "## Kernels that lack a synchronisation"

INTRODUCTION = """
`python -m benchmarks.mutants` takes each expert kernel, with the headers of `pkb/` that synchronise for it, and removes
one operation at a time: a signal, a wait, a barrier, the parity of a double buffer, or an epoch that marks this call's
words. Each of these mutants breaks the call contract ([native-abi.md](native-abi.md)) unless it is
listed as equivalent below. A mutant is *refused* if it does not pass the evaluation, which ends at the stage named. The
failures are those of the commit named: how a refusal is called can change with the check."""

FENCES = """
Mutants without a fence are listed apart. A run cannot always show that one is missing: the hardware may keep the order
all the same."""


def section(folder: Path = RESULTS) -> str:
    """The section, without the results that are not there."""
    found = sorted(folder.glob("mutants*.json"))
    if not found:
        return ""
    return "\n".join([f"{TITLE}\n{INTRODUCTION}\n", *(_of_result(path) for path in found)])


def _of_result(path: Path) -> str:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = result["rows"]
    judged = [row for row in rows if row["evaluations"]]
    wanted = [row for row in rows if row["mutant"] and row["kind"] != "fence"]
    nowhere = sum(row["size"] is None for row in wanted)
    left = sum(row["size"] is not None and not row["evaluations"] for row in wanted)
    mutants = [row for row in judged if row["mutant"] and row["kind"] != "fence"]
    wrong = [row for row in mutants if row["equivalent"] is None]
    right = [row for row in mutants if row["equivalent"] is not None]
    experts = [row for row in judged if not row["mutant"]]
    fences = [row for row in judged if row["kind"] == "fence"]
    where = f"{parts.count(result['world_size'], 'rank')} on {'the CPU' if result['device'] == 'cpu' else 'H200'}"
    names = list(dict.fromkeys(row["problem"] for row in judged))
    counts = [row["evaluations"] for row in wrong] or [0]
    repeats = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    text = [
        f"### {where}\n",
        f"{len(wrong)} wrong mutants, {repeats} evaluations of each: {_share(wrong)} refused. "
        f"Mutants that were not judged: {left}; whose operation no rank comes to at these sizes: {nowhere}. "
        f"Unchanged experts: {f'{_share(experts)} refused' if experts else 'not judged in this run'}. "
        f"Sizes {' and '.join(result['sizes'])}, until `{result['until']}`; commit {result['commit']} "
        f"(`benchmarks/results/{path.name}`).\n",
        parts.table(
            ("kernel", "wrong mutants", "refused", "failures", "unchanged: refused"),
            [_line(name, wrong, experts) for name in names],
        ),
    ]
    survivors = [row for row in wrong if row["refused"] < row["evaluations"]]
    if survivors:
        head = ("kernel", "missing", "refused")
        text.append(parts.table(head, [(row["problem"], f"`{row['mutant']}`", _share([row])) for row in survivors]))
    if right:
        head = ("kernel", "equivalent mutant: missing", "refused", "reason")
        lines = [(row["problem"], f"`{row['mutant']}`", _share([row]), row["equivalent"]) for row in right]
        text.append(parts.table(head, lines))
    if fences:
        head = ("kernel", "missing fence", "refused")
        lines = [(row["problem"], f"`{row['mutant']}`", _share([row])) for row in fences]
        text.append(f"{FENCES}\n\n{parts.table(head, lines)}")
    return "\n".join(text)


def _line(name: str, wrong: Sequence[dict[str, Any]], experts: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    mine = [row for row in wrong if row["problem"] == name]
    failures: Counter[str] = Counter()
    for row in mine:
        failures.update(row["failures"])
    reasons = ", ".join(f"{failure} {count}" for failure, count in failures.most_common())
    unchanged = [row for row in experts if row["problem"] == name]
    return name, str(len(mine)), _share(mine), reasons or "-", _share(unchanged)


def _share(rows: Sequence[dict[str, Any]]) -> str:
    """Refused evaluations of all."""
    return f"{sum(row['refused'] for row in rows)} of {sum(row['evaluations'] for row in rows)}" if rows else "-"
