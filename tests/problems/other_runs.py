"""References whose arithmetic is another and no less right, made in ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.authoring.finer_arithmetic import evaluated_in
from pkb_gym.authoring.freedoms import freedom_of, has_float32_answer
from pkb_gym.authoring.mutants import RANKS, results_of
from pkb_gym.authoring.other_arithmetic import OtherArithmetic
from pkb_gym.authoring.other_sums_over_ranks import OtherSums
from pkb_gym.engine.problem import Problem
from tests.problems.support import MadeInRanks, find_problem


def with_other_arithmetic(problem: Problem, seed: int) -> MadeInRanks:
    """The reference with the orders, roundings and ties of a seed, as candidates have them."""
    return MadeInRanks(_other, f"{problem.name}:{seed}")


def _other(place: str) -> Callable[..., Any]:
    name, number = place.split(":")
    problem, seed = find_problem(name), int(number)
    module = importlib.import_module(f"pkb_gym.problems.{problem.category}.{problem.folder}.reference")
    inner = module.solution
    if has_float32_answer(problem) and seed % 3 == 2:
        inner = evaluated_in(torch.float32, inner, results_of(problem))

    def solution(*args: Any) -> Any:
        module.dist = OtherSums(seed)
        try:
            with OtherArithmetic(RANKS * seed + dist.get_rank(), **freedom_of(problem).modes()):
                return inner(*args)
        finally:
            module.dist = dist

    return solution
