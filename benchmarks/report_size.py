"""Time of the metrics of many results, and size of the page of a whole benchmark.

python -m benchmarks.report_size

Results are synthetic (`benchmarks/synthetic_results.py`): real sources with a third of their lines exchanged, invented
verdicts and times.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import make_parser, save
from benchmarks.synthetic_results import synthetic_attempts
from pkb_gym.cli.program import COLLECT_AFTER
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile, read_attempts
from pkb_gym.metrics import agent_figures, results_by_agent
from pkb_gym.report.content import report_content
from pkb_gym.report.page import page_html

AGENTS, SAMPLES = 4, 3
RESULTS = 100_000
T = TypeVar("T")


def main() -> None:
    """Measures and keeps the result."""
    make_parser("report_size", __doc__).parse_args()
    gc.set_threshold(COLLECT_AFTER)  # as `pkb` does
    attempts = list(synthetic_attempts(AGENTS, SAMPLES))
    with tempfile.TemporaryDirectory() as folder:
        metrics = _metrics(attempts, Path(folder))
        pages = [_page(list(synthetic_attempts(AGENTS, SAMPLES, turns)), turns, Path(folder)) for turns in (1, 4)]
        save("report_size", {"metrics": metrics, "pages": pages})


def _metrics(attempts: Sequence[Attempt], folder: Path) -> dict[str, Any]:
    """The figures of as many results as make up the number, repeated as further samples."""
    copies = -(-RESULTS // len(attempts))
    many = [
        attempt.model_copy(update={"sample": attempt.sample + SAMPLES * copy})
        for copy in range(copies)
        for attempt in attempts
    ]
    _, seconds = _timed(lambda: [agent_figures(results) for results in results_by_agent(many)])
    path = folder / "results.jsonl"
    with AttemptFile(path, writer="report_size", option="--out") as file:
        for attempt in attempts:
            file.append(attempt)
    _, reading_s = _timed(lambda: read_attempts(path))
    return {
        "results": len(many),
        "agents": AGENTS,
        "metrics_s": round(seconds, 2),
        "reading_1000_results_s": round(1000 * reading_s / len(attempts), 2),
    }


def _page(attempts: list[Attempt], turns: int, folder: Path) -> dict[str, Any]:
    """Size and times of the page of all these attempts."""
    html, seconds = _timed(lambda: page_html(report_content(attempts), attempts))
    path = folder / f"report-{turns}.html"
    path.write_text(html, encoding="utf-8")
    return {
        "agents": AGENTS,
        "samples": SAMPLES,
        "turns": turns,
        "attempts": len(attempts),
        "source_bytes": sum(len(attempt.source or "") for attempt in attempts),
        "page_bytes": path.stat().st_size,
        "is_complete": "for the size of the page" not in html,
        "making_s": round(seconds, 1),
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of the work, and its wall time in seconds."""
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


if __name__ == "__main__":
    main()
