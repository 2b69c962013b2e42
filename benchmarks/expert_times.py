"""Keeps the measured times of GPU experts where the package finds them: `problems/expert_times.json`.

python -m benchmarks.expert_times

Reads the results of `benchmarks.gpu_experts`. Of several measurements of one kind the latest counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import RESULTS, make_parser
from benchmarks.gpu_experts import EXPERT, SIZES
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.problems.catalogue import catalogue
from pkb_gym.problems.expert_times import EXPERT_TIMES, ExpertTime


def measured_times(results: Sequence[Path]) -> list[ExpertTime]:
    """The times of experts in results, in the order of the catalogue.

    Args:
        results: Files of `benchmarks.gpu_experts`.
    """
    order = {problem.name: problem for problem in catalogue()}
    latest: dict[tuple[str, str, int, str], ExpertTime] = {}
    for result in sorted((json.loads(path.read_text(encoding="utf-8")) for path in results), key=_date):
        for row in result["rows"]:
            if row["kernel"] != EXPERT or row["size"] not in SIZES or not row["passed"] or row["problem"] not in order:
                continue
            time = ExpertTime(
                problem=row["problem"],
                size=row["size"],
                world_size=row["world_size"],
                gpu=result["gpus"][0],
                dtype=order[row["problem"]].dtypes[0],
                expert_us=row["candidate_us"],
                baseline_us=row["baseline_us"],
                captured_us=row["baseline_graph_us"],
                speedup=row["speedup"],
                speedup_low=row["speedup_low"],
                utilisation=row["utilisation"],
                commit=result["commit"],
                date=result["date"],
            )
            latest[time.problem, time.size, time.world_size, time.gpu] = time
    places = list(order)
    return sorted(
        latest.values(), key=lambda time: (places.index(time.problem), time.world_size, SIZES.index(time.size))
    )


def _date(result: dict[str, str]) -> str:
    return result["date"]


def as_json(times: Sequence[ExpertTime]) -> str:
    """The text of the file."""
    return row_json({"command": "python -m benchmarks.expert_times", "rows": [asdict(time) for time in times]})


def main() -> None:
    """Writes the file."""
    make_parser("expert_times", __doc__).parse_args()
    write_atomically(EXPERT_TIMES, as_json(measured_times(sorted(RESULTS.glob("gpu_experts_*.json")))))


if __name__ == "__main__":
    main()
