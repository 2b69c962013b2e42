"""Right solutions of a finer arithmetic, and what either protocol makes of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem.rules import exact, same_bits
from tests.problems.counterfeit_runs import marked
from tests.problems.support import Job, MadeInRanks, Run, find_problem, run_jobs


def has_float32_answer(problem: Problem) -> bool:
    """Whether some output is a bfloat16 result of arithmetic, which can be done in float32 and rounded at the end."""
    moved = all(isinstance(out.check, exact | same_bits) for out in problem.outputs)
    rounded = any(isinstance(out, InPlace) or out.dtype is None for out in problem.outputs)
    return problem.dtypes[0] == "bfloat16" and rounded and not moved


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
    """A problem's reference, fed with float32 copies of its bfloat16 arguments and rounded to bfloat16 once at the end.

    Sums over ranks and inside a rank are then as good as exact: a right solution, if the problem does not itself
    prescribe roundings on the way.
    """
    problem = find_problem(name)
    reference = importlib.import_module(f"pkb_gym.problems.{problem.category}.{problem.folder}.reference").solution
    mutable = {out.name for out in problem.outputs if isinstance(out, InPlace)}
    floating = [out.dtype is None for out in problem.returned]

    def solution(*args: Any) -> Any:
        wide = [_cast(arg, torch.bfloat16, torch.float32) for arg in args]
        result = reference(*wide)
        for arg, given, used in zip(problem.args, args, wide, strict=True):
            if arg.name in mutable:
                _write_back(used, given)
        if problem.returns == "value":
            return _narrow(result) if floating and floating[0] else result
        if problem.returns == "dict":
            keys = {out.key for out, narrow in zip(problem.returned, floating, strict=True) if narrow}
            return {key: _narrow(value) if key in keys else value for key, value in result.items()}
        return tuple(_narrow(value) if narrow else value for value, narrow in zip(result, floating, strict=True))

    return solution


def _narrow(value: Any) -> Any:
    return _cast(value, torch.float32, torch.bfloat16)


def _cast(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """Copies in which tensors of one dtype have another."""
    if isinstance(value, torch.nn.Linear):
        return _wide_linear(value, new)
    if isinstance(value, torch.Tensor):
        return value.to(new) if value.dtype == old else value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_cast(part, old, new) for part in value)
    return value


def _wide_linear(layer: torch.nn.Linear, dtype: torch.dtype) -> torch.nn.Linear:
    wide = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=dtype)
    wide.load_state_dict({name: value.to(dtype) for name, value in layer.state_dict().items()})
    return wide


def _write_back(used: Any, given: Any) -> None:
    if isinstance(given, torch.Tensor):
        given.copy_(used)
    elif isinstance(given, list):
        for one, other in zip(used, given, strict=True):
            _write_back(one, other)
