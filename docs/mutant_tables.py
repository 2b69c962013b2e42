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
sizes_of_mutants = load_module(HERE.parent / "benchmarks" / "mutant_sizes.py", "docs.mutant_sizes")

RESULTS = HERE.parent / "benchmarks" / "results"
TITLE = "## Kernels that lack a synchronisation"

INTRODUCTION = """
A *mutant* is an expert kernel without one of its synchronising operations, whether that stands in the kernel or in a
header of `pkb/` that it includes: a signal, a wait, a barrier, the parity of a double buffer, an epoch that
distinguishes the words of this call from older ones, or all epochs at once. `python -m benchmarks.mutants` makes them
and evaluates them repeatedly, each time on other inputs. A mutant is wrong if it breaks the call contract
([native-abi.md](native-abi.md#the-call-contract)); those that keep it all the same are listed as equivalent, each with
the reason. Operations that no rank ever reaches are listed too: most stand in a header's branch for other kernels. A
mutant is *refused* if its evaluation, up to the stage named, ends in a failure. `deadlock` and `timeout` are failures
too: without its signal, a rank waits forever. The commit named is that of the evaluations; a later one may refuse a
mutant with another failure."""

FENCES = """
Mutants without one of their fences are listed apart. An evaluation cannot always find them: the hardware may keep the
order without the fence."""


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
    nowhere = [row for row in wanted if row["size"] is None]
    never = [row for row in nowhere if row.get("unreached")]
    left = sum(row["size"] is not None and not row["evaluations"] for row in wanted)
    mutants = [row for row in judged if row["mutant"] and row["kind"] != "fence"]
    wrong = [row for row in mutants if row["equivalent"] is None]
    right = [row for row in mutants if row["equivalent"] is not None]
    experts = [row for row in judged if not row["mutant"]]
    fences = [row for row in judged if row["kind"] == "fence"]
    where = f"{parts.count(result['world_size'], 'rank')} on {_machine(result)}"
    names = list(dict.fromkeys(row["problem"] for row in judged))
    counts = [row["evaluations"] for row in wrong] or [0]
    commits = _commits(result["commit"], judged)
    repeats = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    text = [
        f"### {where}\n",
        f"{len(wrong)} wrong mutants, {repeats} evaluations of each: {_share(wrong)} refused. "
        f"{_not_evaluated(left, len(nowhere) - len(never), len(never))}{_unchanged(experts, result['sizes'])} "
        f"Each mutant is evaluated at the first size of {_sizes(result['sizes'])} at which a rank reaches its "
        f"operation, until `{result['until']}`; {commits} (`benchmarks/results/{path.name}`).\n",
        parts.table(
            ("kernel", "wrong mutants", "refused", "failures", "unchanged kernel refused"),
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
    if never:
        text.append(parts.table(("kernel", "never reached", "the branch is"), _never(never)))
    if fences:
        head = ("kernel", "missing fence", "refused")
        lines = [(row["problem"], f"`{row['mutant']}`", _share([row])) for row in fences]
        text.append(f"{FENCES}\n\n{parts.table(head, lines)}")
    return "\n".join(text)


def _machine(result: dict[str, Any]) -> str:
    """Where it was measured, in the words of a heading."""
    if result["device"] == "cpu":
        return "the CPU"
    shared = result.get("ranks_per_gpu", 1) > 1
    gpu = " and ".join(sorted({name.removeprefix("NVIDIA ").split()[0] for name in result["gpus"]}))
    return f"{parts.count(len(result['gpus']), gpu)}, which they share" if shared else gpu


def _commits(last: str, rows: Sequence[dict[str, Any]]) -> str:
    """The commit of the evaluations, and those of the earlier ones that they were added to."""
    earlier = sorted({row["commit"] for row in rows if row.get("commit")})
    return f"commit {last}" + (f", some evaluations of {' and '.join(earlier)}" if earlier else "")


def _not_evaluated(left: int, nowhere: int, never: int) -> str:
    """A sentence on mutants without an evaluation, with a space behind it; empty if there are none."""
    reasons = [f"{left} for want of time"] if left else []
    if nowhere:
        reasons.append(f"{nowhere} because no rank reaches the operation at these sizes")
    if never:
        reasons.append(f"{never} because no rank reaches the operation at any size")
    return f"Not evaluated: {', '.join(reasons)}. " if reasons else ""


def _sizes(sizes: Sequence[str]) -> str:
    """The sizes in words."""
    names = [
        "further ones (`benchmarks/mutant_sizes.py`)" if size == sizes_of_mutants.FURTHER else size for size in sizes
    ]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _never(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The operations of each kernel that it never comes to, by the reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row["problem"], row["unreached"]), []).append(f"`{row['mutant']}`")
    return [(problem, ", ".join(names), reason) for (problem, reason), names in found.items()]


def _unchanged(experts: Sequence[dict[str, Any]], sizes: Sequence[str]) -> str:
    """A sentence on the unchanged experts, by size."""
    named = [size for size in sizes if size != sizes_of_mutants.FURTHER]
    by_size = {size: [row for row in experts if row["size"] == size] for size in named}
    by_size["further sizes"] = [row for row in experts if row["size"] not in named]
    shares = [f"{_share(rows)} evaluations at {size}" for size, rows in by_size.items() if rows]
    if not shares:
        return "Unchanged experts were not evaluated in this run."
    kernels = parts.count(len({row["problem"] for row in experts}), "unchanged expert")
    return f"Of {kernels}, {' and '.join(shares)} were refused."


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
