"""How probable it is that a right kernel fails somewhere in an evaluation, for every problem's robust rules.

    python -m benchmarks.false_alarms [PROBLEM ...]

Right variants of each reference (`honest_variants`) are run beside it at size tiny on 4 gloo ranks, in trials of fixed
inputs. The error of every element is noted as a share of what its rule allows. The end of the distribution of these
shares is fitted (`rare_events`), for every rule, every variant, and checked and timed trials apart, and extrapolated to
all elements that an evaluation compares. Rules that ask for equal bits are left out: their outputs are
moved, or prescribed to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import torch

from benchmarks.common import RESULTS, header, save
from benchmarks.honest_variants import Solution, honest_variants
from benchmarks.rare_events import FEW, Tail, chance_of_any, fit_tail
from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem import rules as rules_module
from pkb_gym.engine.problem.problem import snake_case
from pkb_gym.engine.problem.rules import (
    Check,
    CheckContext,
    all_of,
    difference,
    exact,
    norm_close,
    rows_close,
    same_bits,
    wide,
)
from pkb_gym.engine.problem.tensors import argument_leaves, output_leaves
from pkb_gym.engine.stages.timing_statistics import MAX_BLOCKS, MAX_CALLS
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.problems.support import Job, Run, run_jobs

WORLD_SIZE = 4
LIMIT = 1e-6
CHECKED_CALLS = 2 * WORLD_SIZE + 2
TIMED_CALLS = (MAX_BLOCKS["cuda"] + 2) * MAX_CALLS
"""Compared at most: every block as long as it may be, the one that warms up and the one that is disturbed included."""

PART, TAIL = 0.003, 1000
"""The tail of a rule's shares: this part of them, at most so many."""

ENOUGH, MOST_TRIALS = 20_000, 8
"""Elements of each kind of trial that tell a tail, and the most trials that are run for them."""

LARGEST_SHARE = 2.0**12
"""Of an element that is wrong whatever the bound, such as one that must be equal."""


@dataclass(frozen=True)
class RuleRow:
    """One rule of one output, in checked or in timed trials, by the variant whose share of it is largest.

    Attributes:
        output: its name.
        rule: in words.
        timed: which trials.
        variant: see `honest_variants`.
        values: compared in the study.
        share: the largest error, of what is allowed.
        chance: that any output of an evaluation at size tiny fails by it.
        chance_published: likewise with as many elements as at size published.
    """

    output: str
    rule: str
    timed: bool
    variant: str
    values: int
    share: float
    chance: float
    chance_published: float


@dataclass(frozen=True)
class Row:
    """One problem.

    Attributes:
        problem: its name.
        dtype: that it was run in.
        trials: of each variant, checked and timed together.
        growth: how many times more elements there are at size published than at size tiny.
        rules: see there.
        left_out: variant -> why it says nothing, such as falling over.
    """

    problem: str
    dtype: str
    trials: int
    growth: float
    rules: tuple[RuleRow, ...]
    left_out: dict[str, str]


Rule: TypeAlias = tuple[str, int]
"""An output, and the number of one of its rules."""


@dataclass
class Shares:
    """Errors of many elements as shares of what one rule allows.

    Attributes:
        count: of all elements.
        largest: the largest shares, in no order.
    """

    count: int = 0
    largest: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def add(self, shares: torch.Tensor) -> None:
        """Notes those of one tensor."""
        both = torch.cat([self.largest, shares.reshape(-1).double()])
        self.count += shares.numel()
        self.largest = both.topk(min(both.numel(), TAIL)).values

    @property
    def top(self) -> float:
        """The largest of all; 0 where there is none."""
        return float(self.largest.max()) if self.largest.numel() else 0.0

    def tail(self) -> Tail:
        """Fitted to a small part of all."""
        kept = max(FEW, min(TAIL, int(self.count * PART)))
        return fit_tail(self.largest.topk(min(kept, self.largest.numel())).values.tolist(), self.count)


def study(problem: Problem, dtype: str, trials: int) -> Row | None:
    """Runs a problem's variants; None where every output is compared bit by bit."""
    if all(_is_exact(out.check) for out in problem.outputs):
        return None
    of_trial = WORLD_SIZE * max(1, _elements(problem, "tiny", dtype))
    trials = max(trials, min(MOST_TRIALS, -(-ENOUGH // of_trial)))
    plans = [(trial, timed) for timed in (False, True) for trial in range(trials)]
    runs, left_out = _all_runs(problem, dtype, plans)
    truths = runs["baseline"]
    growth = max(1.0, _elements(problem, "published", dtype) / max(1, _elements(problem, "tiny", dtype)))
    rules = {out.name: out.check for out in problem.outputs}
    rows = []
    for timed, calls in ((False, CHECKED_CALLS), (True, TIMED_CALLS)):
        for (output, number), (variant, shares) in _worst_of_rules(truths, runs, timed * trials, trials).items():
            log_chance, values = shares.tail().log_chance_above(1.0), calls * shares.count / trials
            more = growth if shares.count > trials * WORLD_SIZE else 1.0  # one norm a tensor stays one
            rows.append(
                RuleRow(
                    output=output,
                    rule=_parts(rules[output])[number].describe(),
                    timed=timed,
                    variant=variant,
                    values=shares.count,
                    share=_rounded(shares.top),
                    chance=_rounded(chance_of_any(log_chance, values)),
                    chance_published=_rounded(chance_of_any(log_chance, values * more)),
                )
            )
    return Row(problem.name, dtype, 2 * trials, round(growth, 1), tuple(rows), left_out)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _parts(rule: Check) -> Sequence[Check]:
    return rule.rules if isinstance(rule, all_of) else (rule,)


def _worst_of_rules(
    truths: Sequence[Run], runs: Mapping[str, Sequence[Run]], first: int, trials: int
) -> dict[Rule, tuple[str, Shares]]:
    """Of each rule the variant whose share is largest, in trials from `first` on."""
    worst: dict[Rule, tuple[str, Shares]] = {}
    for name, of_variant in runs.items():
        pairs = list(zip(truths, of_variant, strict=True))[first : first + trials]
        for rule, shares in _shares(pairs).items():
            if rule not in worst or shares.top > worst[rule][1].top:
                worst[rule] = (name, shares)
    return worst


def _all_runs(
    problem: Problem, dtype: str, plans: Sequence[tuple[int, bool]]
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """The runs of each variant, in one gang unless one falls over; and why those that do so did."""
    variants = honest_variants(problem)
    with contextlib.suppress(RuntimeError):
        runs = iter(run_jobs([job for each in variants.values() for job in _jobs(problem, dtype, plans, each)], 300.0))
        return {name: [next(runs) for _ in plans] for name in variants}, {}
    found, left_out = {}, {}
    for name, solution in variants.items():
        try:
            found[name] = run_jobs(_jobs(problem, dtype, plans, solution), 120.0)
        except RuntimeError as error:
            left_out[name] = str(error).strip().splitlines()[-1][:160]
    return found, left_out


def _jobs(problem: Problem, dtype: str, plans: Sequence[tuple[int, bool]], solution: Solution | None) -> list[Job]:
    return [
        Job(problem.name, dtype=dtype, trial=trial, timed=timed, world_size=WORLD_SIZE, solution=solution)
        for trial, timed in plans
    ]


def _elements(problem: Problem, size: str, dtype: str) -> int:
    """Of one rank's outputs; of arguments that are overwritten, all."""
    ax = problem.axes(size=size, world_size=WORLD_SIZE, rank=0, dtype=dtype)
    data = {arg.name: arg for arg in problem.data_args}
    return sum(
        leaf.capacity
        for out in problem.outputs
        for leaf in (argument_leaves(data[out.name], ax) if isinstance(out, InPlace) else output_leaves(out, ax))
    )


def _is_exact(rule: Check) -> bool:
    return isinstance(rule, exact | same_bits)


def _shares(pairs: Sequence[tuple[Run, Run]]) -> dict[Rule, Shares]:
    """The shares of every rule, over all ranks and trials.

    Args:
        pairs: of each trial the reference's run and a variant's.
    """
    found: dict[Rule, Shares] = {}
    for truth, got in pairs:
        rules = {out.name: out.check for out in truth.problem.outputs}
        for rank, outputs in enumerate(got.outputs):
            for leaf, value in outputs.items():
                owner, mine = leaf.split("[")[0], truth.outputs[rank]
                context = CheckContext(truth.axes[rank], mine[leaf], truth.args, mine, outputs, leaf)
                rule = rules[owner]
                for number, part in enumerate(_parts(rule)):
                    if not _is_exact(part):
                        found.setdefault((owner, number), Shares()).add(_share(part, value, context))
    return found


def _share(rule: Check, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """The errors that a rule sees, as shares of what it allows."""
    if got.shape != context.expected.shape:
        return torch.tensor([LARGEST_SHARE])
    if isinstance(rule, rows_close | norm_close):
        expected = wide(context.expected)
        dim = -1 if isinstance(rule, rows_close) else None
        error = torch.linalg.vector_norm(difference(wide(got), expected), dim=dim)
        allowed = rule.rel * rules_module.DTYPE_SCALE[context.ax.dtype] * torch.linalg.vector_norm(expected, dim=dim)
        return _quotients(error, allowed)
    seen: list[torch.Tensor] = []
    with _outside_noted(seen):
        refused = bool(rule.wrong(got, context).any())
    if seen and bool((torch.cat(seen) > 1).any()) == refused:
        return torch.cat(seen)
    # A rule that is no bound, or that allows one of two.
    return torch.full((max(1, got.numel()),), LARGEST_SHARE if refused else 0.0)


def _quotients(error: torch.Tensor, allowed: torch.Tensor | float) -> torch.Tensor:
    """Of error and what is allowed; 0 for no error, whatever is allowed."""
    share = torch.where(error == 0, torch.zeros_like(error), error / torch.as_tensor(allowed, dtype=error.dtype))
    return share.double().nan_to_num(nan=LARGEST_SHARE, posinf=LARGEST_SHARE).clamp(max=LARGEST_SHARE).reshape(-1)


@contextlib.contextmanager
def _outside_noted(seen: list[torch.Tensor]) -> Iterator[None]:
    """Has `rules.outside`, in every module that took it from there, note its shares."""
    own = rules_module.outside

    @functools.wraps(own)
    def noted(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
        equal = (got == expected) | (got.isnan() & expected.isnan())
        seen.append(_quotients((got - expected).abs().masked_fill(equal, 0), bound))
        return own(got, expected, bound)

    takers = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("pkb_gym.") and getattr(module, "outside", None) is own
    ]
    with contextlib.ExitStack() as stack:
        for module in takers:
            stack.enter_context(mock.patch.object(module, "outside", noted))
        yield


def main() -> None:
    """Studies, prints and saves; problems that a result has already are kept unless they are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms", description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="names, such as AllReduce (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--dtype", help="floating dtype (default: each problem's own)")
    parser.add_argument(
        "--trials", type=int, default=3, help="of each kind and variant, at least (default: %(default)s)"
    )
    parser.add_argument(
        "--budget-s", type=float, default=3600.0, help="begins no problem after it (default: %(default)s)"
    )
    args = parser.parse_args()
    problems = [find_problem(name) for name in args.problems] or catalogue()
    rows: list[Row] = []
    ends = time.monotonic() + args.budget_s
    for problem in problems:
        if time.monotonic() > ends:
            print(f"{problem.name} and those after it are left for another run", file=sys.stderr)
            break
        if args.dtype not in (None, *problem.dtypes):
            continue
        began = time.monotonic()
        row = study(problem, args.dtype or problem.dtypes[0], args.trials)
        if row is not None:
            rows.append(row)
            print(f"{time.monotonic() - began:5.1f} s", row, file=sys.stderr, flush=True)
    _save(rows, args)


def _save(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """A result of some problems takes the place of their rows in a result of all."""
    name = f"false_alarms_{args.dtype}" if args.dtype else "false_alarms"
    path = args.out / f"{name}.json"
    kept: list[dict[str, Any]] = []
    if args.problems and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))["rows"]
    mine = {row.problem: asdict(row) | {"commit": header()["commit"]} for row in rows}
    order = [snake_case(problem.name) for problem in catalogue()]
    merged = [*(row for row in kept if row["problem"] not in mine), *mine.values()]
    merged.sort(key=lambda row: order.index(snake_case(row["problem"])))
    save(
        name,
        {"calls": {"checked": CHECKED_CALLS, "timed": TIMED_CALLS}, "world_size": WORLD_SIZE, "rows": merged},
        args.out,
    )


if __name__ == "__main__":
    main()
