"""One rank's part in a call of a solution: the process group, its arguments, its outputs by leaf."""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pkb_gym
from pkb_gym.engine.problem import Axes, InPlace, Linear, Problem, Scalar, Sparse, Tensor, TensorList, snake_case
from pkb_gym.engine.problem.axes import resolve_shape
from pkb_gym.engine.problem.rules import as_integers
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, output_leaves
from pkb_gym.engine.rankside import gloo_compat

DEADLINE_S = 60.0


def find_problem(name: str) -> Problem:
    """The declaration of the problem called `name`, for example "AllReduce"."""
    return importlib.import_module(f"{_module(name)}.problem").PROBLEM


def join_gang(store: str, world_size: int, rank: int) -> None:
    """Makes the default process group."""
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # torch 2.13 renames two collectives
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    gloo_compat.install()


def call_solution(
    problem: Problem, ax: Axes, args: dict[str, Any], rank: int, solution: Callable[..., Any] | None
) -> dict[str, torch.Tensor]:
    """One rank's results of one call of a solution, by default the reference, by leaf name."""
    mine = copy.deepcopy(args)
    if solution is None:
        solution = importlib.import_module(f"{_module(problem.name)}.reference").solution
    result = solution(*[_call_value(arg, ax, mine, rank) for arg in problem.args])
    for arg in problem.data_args:
        if not getattr(arg, "mutable", False):
            assert same(mine[arg.name], args[arg.name]), f"{arg.name} was modified"
    return _outputs(problem, ax, result, mine)


def _call_value(arg: Any, ax: Axes, data: Mapping[str, Any], rank: int) -> Any:
    """The argument as `solution` receives it."""
    if isinstance(arg, TensorList) and arg.bare is not None and ax[arg.bare]:
        return data[arg.name][0]
    if isinstance(arg, Tensor | TensorList):
        return data[arg.name]
    if isinstance(arg, Sparse):
        shape = resolve_shape(arg.shape, ax)
        return torch.sparse_coo_tensor(*data[arg.name], shape, is_coalesced=True, check_invariants=False)
    if isinstance(arg, Linear):
        weight, bias = data[arg.name]
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
        layer.weight = torch.nn.Parameter(weight)
        if bias is not None:
            layer.bias = torch.nn.Parameter(bias)
        return layer
    value = ax[arg.axis or arg.name]
    if isinstance(arg, Scalar):
        return list(value) if isinstance(value, tuple) else value
    if value is None:
        return None
    made = [_group(tuple(part)) for part in value]  # every rank makes every group
    return next(group for group, part in zip(made, value, strict=True) if rank in part)


@functools.cache
def _group(ranks: tuple[int, ...]) -> Any:
    """A process group; made once by ranks that serve many tests."""
    return dist.new_group(list(ranks))


def forget_groups() -> None:
    """Makes groups anew from now on; those of a gang that has ended are of no use."""
    _group.cache_clear()


def _result_leaves(problem: Problem, ax: Axes) -> list[Leaf]:
    """Every tensor that is compared, in-place results included, in declared order."""
    data = {arg.name: arg for arg in problem.data_args}
    leaves: list[Leaf] = []
    for out in problem.outputs:
        leaves += argument_leaves(data[out.name], ax) if isinstance(out, InPlace) else output_leaves(out, ax)
    return leaves


def _outputs(problem: Problem, ax: Axes, result: Any, data: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Results by leaf name, their shapes and dtypes compared with the declaration."""
    if problem.returns == "value":
        values = [result] if problem.returned else []
    else:
        values = [result.get(out.key) for out in problem.returned] if problem.returns == "dict" else list(result)
    named = [(out.name, value) for out, value in zip(problem.returned, values, strict=True)]
    named += [(out.name, data[out.name]) for out in problem.outputs if isinstance(out, InPlace)]
    found: dict[str, Any] = {}
    for owner, value in named:
        found |= {f"{owner}[{i}]": part for i, part in enumerate(value)} if isinstance(value, list) else {owner: value}
    found = {leaf: torch.tensor(size) if isinstance(size, tuple) else size for leaf, size in found.items()}
    outputs = {leaf: value.detach() for leaf, value in found.items() if value is not None}
    assert list(outputs) == [leaf.name for leaf in _result_leaves(problem, ax)], list(outputs)
    for leaf in _result_leaves(problem, ax):
        got = outputs[leaf.name]
        assert str(got.dtype) == f"torch.{leaf.dtype}", (leaf, got.dtype)
        assert got.numel() <= leaf.capacity if leaf.shape is None else tuple(got.shape) == leaf.shape, (leaf, got.shape)
    return outputs


def same(left: Any, right: Any) -> bool:
    """Whether two values (tensors, or lists and tuples of them, or None) hold the same bits."""
    if isinstance(left, torch.Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and torch.equal(as_integers(left.contiguous()), as_integers(right.contiguous()))
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    return left == right


@functools.cache
def _module(name: str) -> str:
    """Dotted name of the problem's folder."""
    root = Path(pkb_gym.__file__).parent / "problems"
    found = [path.parent for path in root.glob(f"*/{snake_case(name)}/problem.py")]
    assert len(found) == 1, f"{name}: {len(found)} folders called {snake_case(name)}"
    return f"pkb_gym.problems.{found[0].parent.name}.{found[0].name}"
