"""A fault drill that several processes share, each with a part of the machine; their results become one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COUNTED = ("times", "evaluations", "right", "retried", "wrong")


def run_shares(jobs: int, folder: Path, arguments: Sequence[str], name: str) -> list[dict[str, Any]]:
    """Runs every share to its end; their results.

    Args:
        jobs: number of shares.
        folder: for results of shares, which a further run goes on behind.
        arguments: of the command line, for all shares alike.
        name: of the result of each.

    Raises:
        FileNotFoundError: a share ended without a result.
    """
    paths = [folder / str(share) / name for share in range(jobs)]
    processes = []
    for share, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-m", "benchmarks.fault_drill", *arguments]
        words = [*program, "--share", str(share), "--out", str(path.parent)]
        with (path.parent / "log.txt").open("w", encoding="utf-8") as log:
            processes.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT))
    for process in processes:
        process.wait()
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One result of those of all shares, without its header."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        for row in result["rows"]:
            whole = rows.setdefault((row["fault"], row["through"]), {**row, **dict.fromkeys(COUNTED, 0), "wrong": []})
            for name in COUNTED:
                whole[name] += row[name]
    return {
        "seed": results[0]["seed"],
        "kills": sum(result["kills"] for result in results),
        "left_over": [one for result in results for one in result["left_over"]],
        "rows": [rows[key] for key in sorted(rows)],
    }
