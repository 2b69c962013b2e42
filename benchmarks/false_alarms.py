"""How probable it is that a right kernel fails somewhere in an evaluation, for every problem's robust rules.

    python -m benchmarks.false_alarms [PROBLEM ...]

Right variants of each reference (`honest_variants`) are run beside it on 4 gloo ranks, in trials of fixed inputs, at
size published; where that is too much for a CPU, with fewer rows, tokens or positions (`STUDIED`), but sums of the same
length. Of every comparison of every rule the errors are noted as shares of what is allowed (`rule_shares`), for each
variant, and for checked and timed trials apart. From these the chance follows that one of all elements of an evaluation
is refused, by one of the models of `rare_events`:

- "worst case": the rule allows what a theorem allows (`proven_bounds`);
- "last rounding": each difference was a step between neighbours, and the chance is that of the error before it;
- "tail": the end of the distribution of the shares is fitted, and extrapolated; where the rule leaves room beyond the
  last rounding, that of the shares of this room, which exceed 1 for the same elements;
- "normal": likewise where there are few elements;
- "norm", "count": by their mean and variance.

Rules that ask for equal bits are left out: their outputs are moved, or prescribed to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmarks.common import RESULTS, header
from benchmarks.honest_variants import Solution, honest_variants
from benchmarks.proven_bounds import ProvenBound, proven_bound
from benchmarks.rare_events import (
    FEW,
    chance_of_any,
    fit_tail,
    log_chance_beyond_rounding,
    log_chance_normal,
    log_chance_of_count,
    log_chance_of_norm,
)
from benchmarks.rule_shares import TAIL, Rule, Shares, is_exact, parts, shares_of
from pkb_gym.engine.problem import AxisValue, InPlace, Problem
from pkb_gym.engine.problem.tensors import argument_leaves, output_leaves
from pkb_gym.engine.stages.timing_statistics import MAX_BLOCKS, MAX_CALLS
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.problems.support import Job, Run, end_lasting_processes, run_jobs

WORLD_SIZE = 4
LIMIT = 1e-6
CHECKED_CALLS = 2 * WORLD_SIZE + 2
TIMED_CALLS = (MAX_BLOCKS["cuda"] + 2) * max(MAX_CALLS.values())
"""Compared at most: every block as long as it may be, the one that warms up and the one that is disturbed included."""

PART = 0.003
"""The tail of a rule's shares: this part of them, at most `TAIL`."""

ENOUGH, FEWEST_TRIALS, MOST_TRIALS, PROVEN_TRIALS = 400_000, 3, 16, 2
"""Elements of each kind of trial that determine a tail; trials that are run for them; and where nothing is fitted."""

FEW_VALUES = 4000
"""With fewer elements there is no tail to be fitted."""

Model: TypeAlias = Literal["worst case", "last rounding", "tail", "normal", "norm", "count", "none"]

MLP: Mapping[str, AxisValue] = {"batch": 512, "d_in": 256, "hid": 256, "d_out": 128}
TRIALS: Mapping[str, int] = {
    **dict.fromkeys(("DDP", "ZeRO1", "ZeRO2", "FSDPStep", "GemvDecode"), 4),
    "FSDPTensorParallel": 6,
    "FusedAdamAllGather": 8,
    "FP8ReduceScatterGrads": 16,
}
"""Of problems with norms whose scale hangs on the step or on the groups, or with counts."""

STUDIED: Mapping[str, str | Mapping[str, AxisValue]] = {
    **{name: {"M": 128} for name in ("AllReduce", "Reduce", "ReduceScatter", "TPRMSNorm")},
    **{name: {"M": 128} for name in ("AllGatherGemm", "AllGatherGemmAT", "GemmAllReduce", "GemmAllGather")},
    "LayerNormBackward": {"H": 128},
    "GemmReduceScatter": {"M": 256},
    "BlockedFP8Quantize": {"M": 32},
    "ClipGradNorm": {"shapes": ((256, 1024), (256, 1024), (256, 1024))},
    "ClipGradNormEP": {"dense": ((256, 1024),), "expert": ((256, 1024),)},
    "ImportanceSamplingLoss": {"T": 256, "H": 128, "V": 1000},
    "ContrastiveLoss": {"D": 128},
    **{name: {"T": 128} for name in ("MoECombine", "FusedMoE", "FusedMoELoRA", "MoEBalanced", "MoEWide", "MoENarrow")},
    "QuantizedGradAllReduce": {"N": 1 << 17},
    **{name: dict(MLP) for name in ("DDP", "ZeRO1", "ZeRO2", "FSDPStep")},
    "FSDPTensorParallel": {"rows": 512},
    "DistributedRFFT": {"B": 2, "H": 256, "width": 1024},
    "DistributedIRFFT": {"B": 1, "C": 2, "H": 240, "Wc": 241, "n0": 240, "n1": 480},
    "SphericalConvolution": {"B": 4, "nlat_in": 64, "nlat_out": 64, "nlon_in": 128, "nlon_out": 128},
    "KalmanFilterOptimizer": {"blocks": (256,) * 4},
    "GNNSparseFeatureFetch": {"T": 100_000, "Q": 400},
    "HyenaConv1d": {"H": 128},
    "HyenaCP": {"num_groups": 64},
    "VocabParallelCrossEntropy": {"S": 256},
    "Conv3dAllReduce": {"C": 128, "Co": 64, "size": (5, 18, 18)},
    "Conv2dBoundaryExchange": {"C": 128, "Co": 64, "Hl": 8, "width": 64},
    "CSOAttention": "tiny",
    "DistributedKNN": {"Q": 8, "k": 50, "pool": 2048, "fewest_samples": 256},
    "TileParallelVAEDecode": {"H": 18, "width": 18, "tile_height": 8, "tile_width": 8, "spatial_upsample": 4},
    "SinkhornKnopp": {"b": 64, "K": 1024},
}
"""Axes in place of the published ones, or a size."""


@dataclass(frozen=True)
class RuleRow:
    """One comparison of an output's rule, in checked or in timed trials, by the variant with the largest chance.

    Attributes:
        output: its name.
        rule: in words.
        kind: what is compared: elements, norms of rows or tensors, or counts.
        timed: which trials.
        variant: see `honest_variants`.
        values: compared in the study.
        differing: of these, other than the baseline's or the exact result.
        share: the largest error, of what is allowed.
        model: that the chance follows from; "none" where no variant differed.
        chance: that any output of an evaluation at size published fails by it.
    """

    output: str
    rule: str
    kind: str
    timed: bool
    variant: str
    values: int
    differing: int
    share: float
    model: Model
    chance: float


@dataclass(frozen=True)
class Row:
    """One problem.

    Attributes:
        problem: its name.
        dtype: that it was run in.
        size: a name, or the axes in place of the published ones.
        trials: of each variant, checked and timed together.
        growth: how many times more elements there are at size published.
        rules: see there.
        reason: of rules whose bound is a theorem's, by output.
        left_out: variant -> why it is no evidence, such as a failure.
    """

    problem: str
    dtype: str
    size: str | Mapping[str, AxisValue]
    trials: int
    growth: float
    rules: tuple[RuleRow, ...]
    reason: Mapping[str, str]
    left_out: Mapping[str, str]


def study(problem: Problem, dtype: str, size: str | Mapping[str, AxisValue]) -> Row | None:
    """Runs a problem's variants; None where every output is compared bit by bit."""
    if all(is_exact(out.check) for out in problem.outputs):
        return None
    elements = max(1, _elements(problem, size, dtype))
    trials = max(FEWEST_TRIALS, min(MOST_TRIALS, -(-ENOUGH // (WORLD_SIZE * elements))))
    if all(is_exact(out.check) or proven_bound(problem.name, out.name, "elements") for out in problem.outputs):
        trials = PROVEN_TRIALS
    trials = TRIALS.get(problem.name, trials)
    plans = [(trial, timed) for timed in (False, True) for trial in range(trials)]
    runs, left_out = _all_runs(problem, dtype, size, plans)
    growth = max(1.0, _elements(problem, "published", dtype) / elements)
    rows: list[RuleRow] = []
    reasons: dict[str, str] = {}
    for timed, calls in ((False, CHECKED_CALLS), (True, TIMED_CALLS)):
        of_rules: dict[Rule, dict[str, Shares]] = {}
        for name, of_variant in runs.items():
            pairs = list(zip(runs["baseline"], of_variant, strict=True))[timed * trials :][:trials]
            for rule, shares in shares_of(pairs).items():
                of_rules.setdefault(rule, {})[name] = shares
        for rule, variants in of_rules.items():
            check = next(out.check for out in problem.outputs if out.name == rule.output)
            proven = proven_bound(problem.name, rule.output, rule.kind)
            if proven is not None:
                reasons[rule.output] = proven.reason
            chances = {name: chance_of(rule, variants[name], proven) for name in decisive(variants)}
            variant = max(chances, key=lambda name: (chances[name][1], variants[name].top))
            (model, log_chance), shares = chances[variant], variants[variant]
            per_call = shares.count / trials * (growth if rule.kind in ("elements", "rows") else 1.0)
            rows.append(
                RuleRow(
                    output=rule.output,
                    rule=parts(check)[rule.number].describe(),
                    kind=rule.kind,
                    timed=timed,
                    variant=variant,
                    values=shares.count,
                    differing=shares.differing,
                    share=_rounded(max(each.top for each in variants.values())),
                    model=model,
                    chance=_rounded(chance_of_any(log_chance, calls * per_call)),
                )
            )
    return Row(problem.name, dtype, size, 2 * trials, round(growth, 1), tuple(rows), reasons, left_out)


def decisive(variants: Mapping[str, Shares]) -> list[str]:
    """The variants whose errors give the chance: all but those that differ less than another by far.

    A kernel that rounds where the baseline does differs from it where an intermediate result falls to the neighbour, by
    one step of that. A kernel that does not round there has an error of up to half a step at every such place at once:
    it decides where its errors have twice the variance, and none of the other's is larger than one and a half of its.
    """
    squares = {name: shares.squares / max(1, shares.count) for name, shares in variants.items()}
    widest = max(squares, key=lambda name: squares[name])
    limit = min(1.0, 1.5 * variants[widest].top)
    return [
        name
        for name, shares in variants.items()
        if name == widest or squares[name] > squares[widest] / 2 or shares.top > limit
    ]


def chance_of(rule: Rule, shares: Shares, proven: ProvenBound | None) -> tuple[Model, float]:
    """How one value's chance of being refused is found, and its natural logarithm."""
    if shares.top > 1:
        return "tail", 0.0
    if proven is not None:
        return "worst case", proven.log_chance
    if not shares.differing:
        return "none", -math.inf
    if rule.kind == "norm":
        return "norm", log_chance_of_norm(shares.distinct(), shares.noise)
    if rule.kind == "count":
        return "count", log_chance_of_count(shares.largest.tolist())
    found: list[tuple[float, Model]] = []
    if shares.count < FEW_VALUES and rule.kind == "elements":
        found.append((log_chance_normal(shares.squares / shares.count, 1 + len(shares.distinct())), "normal"))
    else:
        seen = shares.beyond if shares.has_room and bool((shares.beyond > 0).any()) else shares.largest
        kept = min(TAIL, max(FEW, int(shares.count * PART)), seen.numel())
        tail = fit_tail(seen.topk(kept).values.tolist(), shares.count)
        found.append((tail.log_chance_above(1.0), "tail"))
    if rule.kind == "elements" and shares.is_one_step:
        beyond = log_chance_beyond_rounding(shares.steps, shares.step_squares, shares.largest_step, shares.count)
        found.append((beyond, "last rounding"))
    log_chance, model = min(found)
    return model, log_chance


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _all_runs(
    problem: Problem, dtype: str, size: str | Mapping[str, AxisValue], plans: Sequence[tuple[int, bool]]
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """The runs of each variant, in one gang unless one falls over; and why those that do so did."""
    variants = honest_variants(problem)

    def jobs(solution: Solution | None) -> list[Job]:
        return [
            Job(problem.name, size=size, dtype=dtype, trial=t, timed=timed, world_size=WORLD_SIZE, solution=solution)
            for t, timed in plans
        ]

    with contextlib.suppress(RuntimeError):
        runs = iter(run_jobs([job for each in variants.values() for job in jobs(each)], 300.0))
        return {name: [next(runs) for _ in plans] for name in variants}, {}
    found, left_out = {}, {}
    for name, solution in variants.items():
        try:
            found[name] = run_jobs(jobs(solution), 120.0)
        except RuntimeError as error:
            left_out[name] = str(error).strip().splitlines()[-1][:160]
    return found, left_out


def _elements(problem: Problem, size: str | Mapping[str, AxisValue], dtype: str) -> int:
    """The elements of one rank's outputs; of arguments that are overwritten, all."""
    ax = problem.axes(size=size, world_size=WORLD_SIZE, rank=0, dtype=dtype)
    data = {arg.name: arg for arg in problem.data_args}
    return sum(
        leaf.capacity
        for out in problem.outputs
        for leaf in (argument_leaves(data[out.name], ax) if isinstance(out, InPlace) else output_leaves(out, ax))
    )


def main() -> None:
    """Studies, prints and saves; problems that a result of this commit has already are kept unless they are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms", description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="names, such as AllReduce (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--dtype", help="floating dtype (default: each problem's own)")
    parser.add_argument("--size", help='a size\'s name, such as "tiny" (default: published, or less)')
    parser.add_argument(
        "--budget-s", type=float, default=3600.0, help="begins no problem after it; a further run goes on"
    )
    args = parser.parse_args()
    name = "_".join(["false_alarms", *filter(None, (args.size, args.dtype))])
    path = args.out / f"{name}.json"
    problems = [find_problem(each) for each in args.problems] or catalogue()
    try:
        _study_all(problems, args, path)
    finally:
        end_lasting_processes()


def _study_all(problems: Sequence[Problem], args: argparse.Namespace, path: Path) -> None:
    kept = _kept(path, args.problems)
    ends = time.monotonic() + args.budget_s
    about = header()
    for problem in problems:
        if time.monotonic() > ends:
            print(f"{problem.name} and those after it are left for another run", file=sys.stderr)
            break
        if args.dtype not in (None, *problem.dtypes) or problem.name in kept:
            continue
        began = time.monotonic()
        size = args.size or STUDIED.get(problem.name, "published")
        row = study(problem, args.dtype or problem.dtypes[0], size)
        if row is not None:
            kept[problem.name] = asdict(row) | {"commit": about["commit"]}
            _write(path, about, list(kept.values()))
            print(f"{time.monotonic() - began:5.1f} s", _line(row), file=sys.stderr, flush=True)


def _line(row: Row) -> str:
    chance = sum(rule.chance for rule in row.rules)
    return f"{row.problem}: chance {chance:.1g}, share {max((rule.share for rule in row.rules), default=0.0):.2g}"


def _kept(path: Path, named: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rows of an earlier result: all but those named, or those of this commit."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    commit = header()["commit"]
    return {row["problem"]: row for row in rows if (row["problem"] not in named if named else row["commit"] == commit)}


def _write(path: Path, about: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    order = [problem.name for problem in catalogue()]
    rows.sort(key=lambda row: order.index(row["problem"]))
    calls = {"checked": CHECKED_CALLS, "timed": TIMED_CALLS}
    result = {**about, "calls": calls, "world_size": WORLD_SIZE, "rows": rows}
    write_atomically(path, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
