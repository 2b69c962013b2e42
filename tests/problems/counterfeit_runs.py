"""Runs counterfeits, and says what either protocol makes of them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pkb_gym.engine.problem import Problem
from tests.problems.counterfeit import Counterfeit
from tests.problems.support import Job, MadeInRanks, Run, run_jobs

FALLING_OVER_S = {"published": 20.0, "robust": 4.0}
"""A counterfeit whose ranks wait for one that raised has failed by then; sooner where it is meant to fail."""

FOLDER = Path(__file__).resolve().parent.parent / "counterfeits"
TRIALS = {"published": 2, "robust": 4}
"""Trials of each protocol."""


@dataclass(frozen=True)
class WeaknessEvidence:
    """What is known of a problem's weaknesses.

    Attributes:
        counterfeits: Counterfeits, at least one for every weakness that can be shown.
        not_shown: Reason, by the index of each other weakness, why no wrong solution shows it.
    """

    counterfeits: tuple[Counterfeit, ...] = ()
    not_shown: dict[int, str] | None = None

    def of(self, weakness: int) -> list[Counterfeit]:
        """Those that show one weakness."""
        return [counterfeit for counterfeit in self.counterfeits if counterfeit.weakness == weakness]

    def reason(self, weakness: int) -> str | None:
        """Why a weakness is not shown; None where it is."""
        return (self.not_shown or {}).get(weakness)


@dataclass(frozen=True)
class Verdict:
    """In how many trials the outputs of one solution fail.

    Attributes:
        refused: Number of trials with a wrong output.
        trials: Number of all trials.
        fell_over: Whether it raised, so that nothing could be judged.
    """

    refused: int
    trials: int
    fell_over: bool = False

    @property
    def accepted(self) -> bool:
        """Whether every trial passes."""
        return not self.refused and not self.fell_over

    def __str__(self) -> str:
        if self.fell_over:
            return "falls over"
        return "accepts" if self.accepted else f"refuses, {self.refused} of {self.trials} trials"


@cache
def evidence_of(name: str) -> WeaknessEvidence | None:
    """The counterfeits of the problem in that folder; None where nobody wrote any. Their solutions can be sent."""
    if not (FOLDER / f"{name}.py").exists():
        return None
    module = _load(name)
    found = enumerate(module.COUNTERFEITS)
    sent = (replace(each, solution=MadeInRanks(_solution, f"{name}:{index}")) for index, each in found)
    return WeaknessEvidence(tuple(sent), dict(getattr(module, "NOT_SHOWN", {})))


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"counterfeits_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _solution(place: str) -> Callable[..., Any]:
    """The solution of one counterfeit of a file, loaded anew; `place` is "all_gather:0"."""
    name, index = place.split(":")
    return _load(name).COUNTERFEITS[int(index)].solution


def references(problem: Problem, *protocols: str) -> dict[str, list[Run]]:
    """The reference's runs in every trial of the protocols, all in one gang."""
    jobs = [Job(problem.name, protocol=name, trial=trial) for name in protocols for trial in range(TRIALS[name])]
    runs = run_jobs(jobs)
    return {name: [run for run in runs if run.protocol == name] for name in protocols}


def judge(problem: Problem, solution: Callable[..., Any], protocol: str, truths: Sequence[Run]) -> Verdict:
    """What a protocol says of a solution.

    Args:
        problem: Problem that is solved, at size tiny on as many ranks as `truths` have.
        solution: Function called as the reference is.
        protocol: "robust" or "published".
        truths: Runs of the reference, one a trial.
    """
    jobs = [Job(problem.name, protocol=protocol, trial=trial, solution=solution) for trial in range(len(truths))]
    try:
        runs = run_jobs(jobs, FALLING_OVER_S[protocol])
    except RuntimeError:
        return Verdict(0, len(truths), fell_over=True)
    return Verdict(sum(refused(truth, got) for truth, got in zip(truths, runs, strict=True)), len(truths))


def judge_together(
    problem: Problem, solutions: Sequence[Callable[..., Any]], protocol: str, truths: Sequence[Run]
) -> list[Verdict]:
    """Judges each of the solutions; in one gang, which starts sooner than many, unless one falls over."""
    if len(solutions) > 1:
        trials = range(len(truths))
        jobs = [Job(problem.name, protocol=protocol, trial=t, solution=each) for each in solutions for t in trials]
        with contextlib.suppress(RuntimeError):
            runs = iter(run_jobs(jobs, FALLING_OVER_S[protocol]))
            return [Verdict(sum(refused(truth, next(runs)) for truth in truths), len(truths)) for _ in solutions]
    return [judge(problem, solution, protocol, truths) for solution in solutions]


def refused(truth: Run, got: Run) -> bool:
    """Whether any rank's outputs fail the problem's check."""
    return any(wrong for wrong, _ in marked(truth, got))


def marked(truth: Run, got: Run) -> list[tuple[int, int]]:
    """Of each output of each rank, how many elements are marked wrong and how many there are."""
    found = []
    for rank, outputs in enumerate(got.outputs):
        for leaf, value in outputs.items():
            expected = truth.outputs[rank].get(leaf)
            comparable = expected is not None and expected.shape == value.shape
            wrong = int(truth.wrong(rank, leaf, value).sum()) if comparable else max(value.numel(), 1)
            found.append((wrong, value.numel()))
    return found
