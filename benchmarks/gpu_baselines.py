"""Every baseline on GPUs at sizes published and large: its time, also as CUDA graphs, against the roofline.

One warm job of W ranks measures all problems in turn; a problem that fails or hangs costs itself alone. At size
published, inputs are those of protocol "published", so that times compare with the published ones; else "robust".

python -m benchmarks.gpu_baselines [--out FOLDER] [--only NAME ...] [--sizes published large] [--budget-s 290]
python -m benchmarks.gpu_baselines --render FOLDER/gpu_baselines.json    prints the tables of a result
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header
from benchmarks.gpu_baselines_gang import BaselineGang
from benchmarks.gpu_baselines_records import BaselineOutcome, BaselineTask
from benchmarks.gpu_baselines_report import markdown, summary
from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.hardware.calibrate import cpu_hardware
from pkb_gym.engine.hardware.peaks import HardwareSpec, find_gpu
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.stages.roofline import place
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json
from pkb_gym.problems.catalogue import catalogue, find_problem

PUBLISHED = Path(__file__).resolve().parent / "data" / "published_baselines_4xh200.json"
PUBLISHED_DEVICE = "NVIDIA H200"
NAME = "gpu_baselines"
TASK_DEADLINE_S = 40.0
MIN_S = 5.0
"""Minimum budget left in seconds for the start of a task."""

MEASURE_S = 0.25


def main() -> None:
    """Measures and saves, or renders what was saved."""
    args = arguments()
    if args.render:
        print(markdown(json.loads(args.render.read_text(encoding="utf-8"))))
        return
    problems = [find_problem(name) for name in args.only] or list(catalogue())
    tasks = [
        BaselineTask(
            problem.name, size, args.protocol or ("published" if size == "published" else "robust"), args.measure_s
        )
        for size in args.sizes
        for problem in problems
    ]
    result = Measurement(args).run(tasks)
    print(markdown(result))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_baselines", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these problems alone")
    parser.add_argument("--sizes", nargs="+", choices=("tiny", "published", "large"), default=["published", "large"])
    parser.add_argument("--protocol", choices=("robust", "published"), help="for all sizes")
    parser.add_argument("--world-size", type=int, default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help='"cpu" tries the logic on gloo')
    parser.add_argument("--measure-s", type=float, default=MEASURE_S, help="timed seconds each (default: %(default)s)")
    parser.add_argument("--budget-s", type=float, default=290.0, help="for everything (default: %(default)s)")
    parser.add_argument("--render", type=Path, metavar="RESULT", help="print the tables of a result")
    return parser.parse_args()


class Measurement:
    """The gang, and what has been measured so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._deadline = time.monotonic() + args.budget_s
        self._began = time.monotonic()
        self._published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
        self._gang: BaselineGang | None = None
        self._about: dict[str, Any] = {}
        self._gangs = 0
        self._rows: list[dict[str, Any]] = []

    def run(self, tasks: list[BaselineTask]) -> dict[str, Any]:
        """Measures all, as far as the budget goes; what was measured is on disk after each."""
        try:
            for number, task in enumerate(tasks, start=1):
                row = self._row(task)
                self._rows.append(row)
                self._save()
                print(f"{number}/{len(tasks)} {row_text(row)}", file=sys.stderr, flush=True)
        finally:
            if self._gang is not None:
                self._gang.close()
        return self._save()

    def _row(self, task: BaselineTask) -> dict[str, Any]:
        problem = find_problem(task.problem)
        row = {
            "problem": problem.name,
            "upstream": problem.upstream,
            "size": task.size,
            "protocol": task.protocol,
            "dtype": problem.dtypes[0],
        }
        began = time.monotonic()
        outcome = self._outcome(task)
        row |= outcome.row | {"error": outcome.error, "took_s": round(time.monotonic() - began, 2)}
        return row | self._placed(problem, task, outcome.row) | self._compared(problem, task, outcome.row)

    def _outcome(self, task: BaselineTask) -> BaselineOutcome:
        """Runs a task; again in a fresh gang, where what the task before left behind may have caused a failure."""
        outcome, suspect = self._attempt(task)
        return self._attempt(task)[0] if suspect and not outcome.row else outcome

    def _attempt(self, task: BaselineTask) -> tuple[BaselineOutcome, bool]:
        """Runs a task; also whether the task before it failed in the same gang."""
        left_s = self._deadline - time.monotonic()
        if left_s < MIN_S:
            return BaselineOutcome(error="not measured: the time budget was used up"), False
        if self._gang is None:
            self._gang = BaselineGang(self._args.device, self._args.world_size)
            self._about, self._gangs = self._gang.about, self._gangs + 1
        suspect = self._gang.last_failed
        outcome = self._gang.run(task, min(TASK_DEADLINE_S, left_s))
        if not outcome.usable or (suspect and outcome.error):
            self._gang.close()
            self._gang = None
        return outcome, suspect

    def _placed(self, problem: Problem, task: BaselineTask, row: dict[str, Any]) -> dict[str, Any]:
        """Utilisation of the roofline by both baselines; empty where the device's peaks are not known."""
        if not row:
            return {}
        ranks = range(self._args.world_size)
        try:
            hardware = self._hardware()
            axes = [
                problem.axes(size=task.size, world_size=len(ranks), rank=rank, protocol=task.protocol) for rank in ranks
            ]
            roofline = place(problem, [axes], hardware, row["eager"]["lower_quartile_us"])
        except PkbError as error:
            return {"no_roofline_because": str(error)}
        graph = row.get("graph")
        ceiling_us = roofline.ceiling_us
        return {
            "ceiling_us": round(ceiling_us, 3),
            "binds": roofline.binds,
            "utilisation": round(ceiling_us / row["eager"]["lower_quartile_us"], 4),
            "graph_utilisation": round(ceiling_us / graph["lower_quartile_us"], 4) if graph else None,
        }

    def _hardware(self) -> HardwareSpec:
        return cpu_hardware() if self._args.device == "cpu" else find_gpu(self._about["device"])

    def _compared(self, problem: Problem, task: BaselineTask, row: dict[str, Any]) -> dict[str, Any]:
        """This measurement over the published one, in the published configuration and on its machine alone."""
        published_ms = self._published["baseline_ms"].get(problem.upstream)
        like_published = (
            task.size == "published" and self._args.world_size == 4 and self._about["device"] == PUBLISHED_DEVICE
        )
        if not row or not like_published or published_ms is None:
            return {}
        published_us = published_ms * 1e3
        return {
            "published_us": round(published_us, 1),
            "mean_over_published": round(row["eager"]["rank0_mean_us"] / published_us, 3),
            "median_over_published": round(row["eager"]["rank0_median_us"] / published_us, 3),
        }

    def _save(self) -> dict[str, Any]:
        about = self._about | {
            "world_size": self._args.world_size,
            "gangs_started": self._gangs,
            "total_s": round(time.monotonic() - self._began, 1),
            "published": {key: value for key, value in self._published.items() if key != "baseline_ms"},
        }
        result = header() | about | {"summary": summary(self._rows), "rows": self._rows}
        name = NAME if self._args.device == "cuda" else f"{NAME}_cpu"  # a trial of the logic, not a result
        write_atomically(self._args.out / f"{name}.json", row_json(result))
        return result


def row_text(row: dict[str, Any]) -> str:
    """One line for the terminal."""
    what = f"{row['problem']} {row['size']}"
    if "eager" not in row:
        return f"{what}: {row['error']}"
    graph = row.get("graph")
    captured = f"graph {graph['median_us']:.1f} us" if graph else f"no graph: {row.get('no_graph_because')}"
    ceiling = f"ceiling {row.get('ceiling_us')} us"
    text = f"{what}: {row['eager']['median_us']:.1f} us, {captured}, {ceiling}, {row['took_s']} s"
    return f"{text}; {row['error']}" if row["error"] else text


if __name__ == "__main__":
    main()
