"""Are times measured in a training loop's reward phase those of an idle machine?

One evaluation service judges the same kernels by turns: while nothing else runs, and in the reward phases of a training
loop on the same devices (`colocated`): its ranks generate, learn, offload their memory and wait.
Kernels are the experts'.

    python -m benchmarks.colocated [--device cuda --world-size 4] [--rounds N] [--turns N] [PROBLEM ...]

Per kernel and for all together, the ratio of the medians of both, and its 95 % bootstrap interval over evaluations.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import RESULTS, save
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.training.evaluation.owner import ServiceProcess
from pkb_gym.training.processes.offload import Offload

PROBLEMS = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
RESAMPLES = 2000

Sample = dict[str, Any]
"""One evaluation: problem, candidate_us, baseline_us, speedup."""


@dataclass(frozen=True)
class Plan:
    """The plan of a measurement.

    Attributes:
        url: of the evaluation service.
        token: that it asks for.
        problems: whose expert kernels are judged.
        device: "cpu" or "cuda".
        world_size: ranks of the kernels, and of the training loop.
        size: named size of the problems.
        offload: what leaves the GPU in a reward phase.
        rounds: numbers of the rounds, each of which has inputs of its own.
    """

    url: str
    token: str
    problems: tuple[str, ...]
    device: Literal["cpu", "cuda"]
    world_size: int
    size: str
    offload: Offload
    rounds: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The rows that `write` wrote."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """As JSON, for the training loop."""
        path.write_text(json.dumps(asdict(self)))


def judge_all(remote: RemoteEvaluator, plan: Plan, number: int) -> list[Sample]:
    """Judges every kernel once."""
    samples = []
    for name in plan.problems:
        problem = find_problem(name)
        source = expert_source(problem, "cu" if plan.device == "cuda" else "cpp")
        assert source is not None, f"{name} has no expert kernel for {plan.device}"
        config = EvalConfig(device=plan.device, world_size=plan.world_size, size=plan.size, until="time", seed=number)
        timing = remote.evaluate(problem, source, config).timing
        assert timing is not None, f"{name} was not timed"
        samples.append(
            {
                "problem": name,
                "candidate_us": timing.candidate_us,
                "baseline_us": timing.baseline_us,
                "speedup": timing.speedup,
            }
        )
    return samples


def train_and_judge(plan: Plan) -> dict[str, Any]:
    """The samples of a training loop's reward phases, and where its time went."""
    with tempfile.TemporaryDirectory() as folder:
        plan_file, output = Path(folder) / "plan.json", Path(folder) / "output.json"
        plan.write(plan_file)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(plan.world_size), "-m", "benchmarks.colocated_rank"]
        subprocess.run([*command, str(plan_file), str(output)], check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def ratio(loop: Sequence[Sequence[float]], idle: Sequence[Sequence[float]]) -> dict[str, float]:
    """Geometric mean over kernels of the ratio of medians, with its bootstrap interval.

    Args:
        loop: times of each kernel, in the training loop.
        idle: likewise, on the idle machine.
    """

    def estimate(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
        pairs = zip(ones, others, strict=True)
        return exp(statistics.fmean(log(statistics.median(one) / statistics.median(other)) for one, other in pairs))

    chance = random.Random(0)
    drawn = sorted(
        estimate(
            [chance.choices(kernel, k=len(kernel)) for kernel in loop],
            [chance.choices(kernel, k=len(kernel)) for kernel in idle],
        )
        for _ in range(RESAMPLES)
    )
    low, high = drawn[round(0.025 * RESAMPLES)], drawn[round(0.975 * RESAMPLES)]
    return {"ratio": round(estimate(loop, idle), 4), "low": round(low, 4), "high": round(high, 4)}


def compare(loop: Sequence[Sample], idle: Sequence[Sample], problems: Sequence[str]) -> dict[str, Any]:
    """Ratios of each kernel, and of all together, for the candidate's time, the baseline's and the speedup."""

    def times(samples: Sequence[Sample], problem: str, what: str) -> list[float]:
        return [sample[what] for sample in samples if sample["problem"] == problem]

    return {
        what: {
            "all": ratio([times(loop, one, what) for one in problems], [times(idle, one, what) for one in problems]),
            **{one: ratio([times(loop, one, what)], [times(idle, one, what)]) for one in problems},
        }
        for what in ("candidate_us", "baseline_us", "speedup")
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.colocated")
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--size", help="named size (default: tiny on the CPU, published on GPUs)")
    parser.add_argument("--offload", choices=("cache", "optimizer", "all"), default="optimizer")
    parser.add_argument("--rounds", type=int, default=5, help="evaluations of each kernel in each turn")
    parser.add_argument("--turns", type=int, default=2, help="how often idle and training follow each other")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    return parser.parse_args(argv)


def main() -> None:
    """Measures and saves."""
    args = parse()
    service = ServiceProcess()
    try:
        plan = Plan(
            url=service.url,
            token=service.token,
            problems=tuple(args.problems),
            device=args.device,
            world_size=args.world_size,
            size=args.size or ("published" if args.device == "cuda" else "tiny"),
            offload=args.offload,
            rounds=(),
        )
        remote = RemoteEvaluator(service.url, service.token)
        judge_all(remote, plan, number=0)  # compiles, connects
        idle: list[Sample] = []
        loop: list[Sample] = []
        phases_s: list[dict[str, float]] = []
        for turn in range(args.turns):
            first = 1 + 2 * turn * args.rounds
            for number in range(first, first + args.rounds):
                idle += judge_all(remote, plan, number)
            rounds = tuple(range(first + args.rounds, first + 2 * args.rounds))
            found = train_and_judge(replace(plan, rounds=rounds))
            loop += found["measured"]
            phases_s.append(found["phases_s"])
    finally:
        service.close()
    requested = {"device": args.device, "world_size": args.world_size, "size": plan.size, "offload": args.offload}
    counts = {"evaluations_of_each_kernel": {"idle": args.turns * args.rounds, "training": args.turns * args.rounds}}
    ratios = compare(loop, idle, plan.problems)
    name = "colocated" if args.device == "cpu" else "gpu_colocated"
    found = {"training_over_idle": ratios, "phases_s": phases_s, "idle": idle, "training": loop}
    save(name, requested | counts | found, args.out)


if __name__ == "__main__":
    main()
