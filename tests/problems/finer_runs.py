"""Right solutions of a finer arithmetic, and what either protocol makes of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pkb_gym.authoring.finer_arithmetic import evaluated_in
from pkb_gym.authoring.mutants import results_of
from pkb_gym.engine.problem import Problem
from tests.problems.counterfeit_runs import marked
from tests.problems.support import Job, MadeInRanks, Run, find_problem, run_jobs


def shares_wrong(
    problem: Problem, solution: Callable[..., Any], truths: Mapping[str, Sequence[Run]]
) -> dict[str, float] | None:
    """Protocol -> share of a solution's elements that it marks wrong; None where the solution falls over.

    Args:
        problem: Problem that is solved.
        solution: Function called as the reference is, in every trial of both protocols.
        truths: Runs of the reference.
    """
    pairs = [(name, trial) for name, runs in truths.items() for trial in range(len(runs))]
    try:
        runs = run_jobs([Job(problem.name, protocol=name, trial=trial, solution=solution) for name, trial in pairs])
    except RuntimeError:
        return None
    shares = {}
    for name, of_protocol in truths.items():
        counts = [
            count
            for (protocol, trial), got in zip(pairs, runs, strict=True)
            if protocol == name
            for count in marked(of_protocol[trial], got)
        ]
        shares[name] = sum(wrong for wrong, _ in counts) / max(1, sum(elements for _, elements in counts))
    return shares


def evaluated_in_float32(problem: Problem) -> MadeInRanks:
    """The reference evaluated in float32, made in the ranks."""
    return MadeInRanks(_in_float32, problem.name)


def _in_float32(name: str) -> Callable[..., Any]:
    problem = find_problem(name)
    reference = importlib.import_module(f"pkb_gym.problems.{problem.category}.{problem.folder}.reference").solution
    return evaluated_in(torch.float32, reference, results_of(problem))
