"""The section of docs/robustness.md on generated wrong solutions, from benchmarks/results/wrong_solutions.json."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # for `benchmarks`, which is not installed
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
passes = load_module(HERE.parent / "benchmarks" / "legitimate_passes.py", "docs.legitimate_passes")

RESULT = HERE.parent / "benchmarks" / "results" / "wrong_solutions.json"
TITLE = "## Generated wrong solutions"

INTRODUCTION = """
`python -m benchmarks.wrong_solutions` makes one mistake in each reference: a collective returns zeros or the rank's own
data in place of the others'; sums over ranks become means; only the first rank's data count; inputs are rounded to 8 or
16 bits, or half of their rows are replaced by the other half, or by means. Problems with small outputs are also given
estimators, which know the distribution of the inputs: means and variances in place of products, half of the rows for
all. The robust rules of the problem judge each solution in checked and in timed trials; it is refused if any of these
trials fails."""


def section(path: Path = RESULT) -> str:
    """The section; empty without a result."""
    if not path.exists():
        return ""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = result["rows"]
    passing = [row for row in rows if row["refused_in"] is None]
    kinds = Counter(_kind(row["wrong"]) for row in rows)
    passed = Counter(_kind(row["wrong"]) for row in passing)
    sizes = sorted({row["world_size"] for row in rows})
    where = f"Size {result['size']}, {' and '.join(map(str, sizes))} ranks; commit {result['commit']}"
    listed: dict[tuple[str, str], list[str]] = {}
    for row in passing:
        listed.setdefault((row["problem"], row["wrong"]), []).append(str(row["world_size"]))
    return "\n".join(
        [
            f"{TITLE}\n{INTRODUCTION}\n",
            f"{len(rows)} wrong solutions, {len(rows) - len(passing)} of them refused. {where} "
            f"(`benchmarks/results/{path.name}`).\n",
            parts.table(
                ("mistake", "solutions", "refused"),
                [(kind, str(count), str(count - passed[kind])) for kind, count in sorted(kinds.items())],
            ),
            "Solutions that pass, with the reason why they are right or harmless:\n",
            parts.table(
                ("problem", "mistake", "ranks", "reason"),
                [
                    (problem, wrong, ", ".join(ranks), passes.reason_why(problem, int(ranks[0]), wrong) or "none")
                    for (problem, wrong), ranks in listed.items()
                ],
            ),
        ]
    )


def _kind(wrong: str) -> str:
    """The mistake without its number, or the kind of estimator."""
    head, _, rest = wrong.partition(": ")
    if head.startswith("collective "):
        return f"one collective: {rest}"
    return "estimator" if head == "estimator" else wrong
