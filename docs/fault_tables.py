"""Writes docs/security_faults.md, what faults of the machine do to verdicts, from benchmarks/results/fault_drill.json.

    python docs/fault_tables.py

A test fails when the section differs from what this would write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")

PAGE = HERE / "security_faults.md"
RESULTS = HERE.parent / "benchmarks" / "results"
DEVICES = {"fault_drill.json": "the CPU", "fault_drill_gpus.json": "GPUs"}
TITLE = "## Killed processes and used-up resources"

INTRODUCTION = """
`python -m benchmarks.fault_drill` kills processes with SIGKILL at random moments while three sources are judged side by
side, through an evaluator in a process of its own and through `pkb serve`. The sources are right, wrong and crashing
ones, whose verdicts are known. An evaluation is *right* if it ends with its verdict at once, *repeated* if it ends as
`infrastructure` first and with its verdict when it is judged again, and *wrong* otherwise.

- A candidate or a compiler that was killed is run once more. A second kill is the candidate's own doing.
- Temporary folders and files are locked by the process that made them. The next evaluator removes those whose owner has
  ended.
- A compiled binary is kept with its digest, and compiled again where it does not match.
- Descriptors or disk that are used up end an evaluation as `infrastructure`.

Gangs that stand by exist on GPUs. There they are killed before a source comes that would be given them, through the
evaluator and through the service; on the CPU, the drill's evaluator prepares gangs ahead in the same way."""


def section(folder: Path = RESULTS) -> str:
    """The section; empty without a result."""
    paths = [(folder / name, where) for name, where in DEVICES.items() if (folder / name).exists()]
    if not paths:
        return ""
    return "\n".join([f"{TITLE}\n{INTRODUCTION}\n", *(_result(path, where) for path, where in paths)])


def _result(path: Path, where: str) -> str:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = result["rows"]
    wrong = [(row["fault"], row["through"], one) for row in rows for one in row["wrong"]]
    others = {row["fault"]: row["commit"] for row in rows if row.get("commit")}
    commits = "".join(f", {fault}: {commit}" for fault, commit in others.items())
    text = [
        f"{parts.count(result['kills'], 'kill')} with seed {result['seed']}, size tiny on 2 ranks of {where}; commit "
        f"{result['commit']}{commits} (`benchmarks/results/{path.name}`). Processes and files left over: "
        f"{len(result['left_over'])}.\n",
        parts.table(
            ("fault", "through", "times", "evaluations", "right", "repeated", "wrong"),
            [_cells(row) for row in rows],
        ),
    ]
    if wrong:
        text.append(parts.table(("fault", "through", "wrong verdict"), wrong))
    if result["left_over"]:
        text.append(parts.table(("left over",), [(one,) for one in result["left_over"]]))
    return "\n".join(text)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    counts = (row["times"], row["evaluations"], row["right"], row["retried"], len(row["wrong"]))
    return row["fault"], row["through"], *map(str, counts)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(section(), encoding="utf-8")


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    main()
