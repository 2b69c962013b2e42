"""Time of `pkb run --agent reference` over the whole catalogue, from the prompt to its end.

python -m benchmarks.agent_runs

The command runs as a process of its own with its results in a temporary folder. The peaks of the machine are measured
before, as they are once on any machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import make_parser, save
from pkb_gym.engine.hardware.lookup import find_hardware
from pkb_gym.engine.records.attempt_file import read_attempts


def main() -> None:
    """Measures and keeps the result."""
    parser = make_parser("agent_runs", __doc__)
    parser.add_argument("--problems", nargs="+", default=["all"], help="problems of the run (default: all)")
    parser.add_argument("--world-size", default="2", metavar="N", help="ranks (default: 2)")
    args = parser.parse_args()
    find_hardware("cpu")
    load = os.getloadavg()[0]
    words = ["run", "--agent", "reference", "--until", "check", "--device", "cpu", "--world-size", args.world_size]
    with tempfile.TemporaryDirectory(prefix="pkb-") as folder:
        output = Path(folder) / "run"
        command = [sys.executable, "-m", "pkb_gym.cli", *words, "--problems", *args.problems]
        began = time.monotonic()
        ran = subprocess.run([*command, "--output", str(output), "--json"], stdout=subprocess.PIPE, check=False)
        wall_s = time.monotonic() - began
        result: dict[str, Any] = {
            "load_average_before": load,
            "options": " ".join(words),
            "exit_status": ran.returncode,
            "wall_s": wall_s,
            "summary": {**json.loads(ran.stdout), "results": None},
            **_by_attempt(output / "results.jsonl"),
        }
    save("agent_runs", result)


def _by_attempt(path: Path) -> dict[str, Any]:
    """Seconds of the evaluations as the run saw them, waiting for others included, and the verdicts."""
    attempts = read_attempts(path)
    seconds = sorted(attempt.duration_s for attempt in attempts if attempt.duration_s is not None)
    verdicts = [attempt.verdict for attempt in attempts]
    return {
        "problems": len({attempt.problem for attempt in attempts}),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "evaluation_median_s": statistics.median(seconds),
        "evaluation_max_s": seconds[-1],
    }


if __name__ == "__main__":
    main()
