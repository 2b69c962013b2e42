"""Shapes of arguments and outputs in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pkb_gym.engine.problem import (
    Argument,
    Group,
    Linear,
    Output,
    OutputList,
    Problem,
    Scalar,
    Sparse,
    Tensor,
    TensorList,
)
from pkb_gym.engine.problem.axes import Axes, resolve_shape

MAX_DIFFERENT = 4
"""The most different shapes of the ranks that are spelt out."""


def shape_texts(problem: Problem, ranks: Sequence[Axes]) -> dict[str, str]:
    """Name of each argument and output -> shape or value; ranks that differ are listed in order.

    Args:
        problem: Problem whose arguments and outputs are shown.
        ranks: Axes of every rank.
    """
    texts = {arg.name: _together([_argument(arg, ax) for ax in ranks]) for arg in problem.args}
    outputs = {f"-> {out.key}": _together([_output(out, ax) for ax in ranks]) for out in problem.returned}
    return texts | outputs


def _together(texts: Sequence[str]) -> str:
    if len(set(texts)) == 1:
        return texts[0]
    shown = texts if len(texts) <= MAX_DIFFERENT else [*texts[: MAX_DIFFERENT - 1], "..", texts[-1]]
    return " | ".join(shown)


def _argument(arg: Argument, ax: Axes) -> str:
    if isinstance(arg, Tensor):
        return _shape(resolve_shape(arg.shape, ax)) if arg.optional is None or ax[arg.optional] else "None"
    if isinstance(arg, TensorList):
        return _list(ax.shapes(arg.shapes))
    if isinstance(arg, Linear):
        return f"Linear {_shape(resolve_shape(arg.shape, ax))}"
    if isinstance(arg, Sparse):
        return f"sparse {_shape(resolve_shape(arg.shape, ax))}, {ax.number(arg.nnz)} entries"
    value = ax[arg.axis or arg.name]
    if isinstance(arg, Group):
        return "all ranks" if value is None else f"ranks {value}"
    assert isinstance(arg, Scalar)
    return str(value)


def _output(out: Output | OutputList, ax: Axes) -> str:
    if isinstance(out, OutputList):
        return _list(ax.shapes(out.shapes))
    if out.when is not None and not ax[out.when]:
        return "None"
    if out.capacity is None:
        return _shape(resolve_shape(out.shape, ax))
    assert isinstance(out.shape, tuple)
    dims = [dim if dim == "?" or isinstance(dim, int) else ax.number(dim) for dim in out.shape]
    return f"{_shape(dims)} of at most {ax.number(out.capacity)}"


def _shape(dims: Sequence[object]) -> str:
    return f"({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''})"


def _list(shapes: Sequence[Sequence[int] | None]) -> str:
    """A few shapes are spelt out, many are counted."""
    if len(shapes) <= MAX_DIFFERENT:
        return "[" + ", ".join("None" if shape is None else _shape(shape) for shape in shapes) + "]"
    there = [shape for shape in shapes if shape is not None]
    return f"{len(there)} tensors, {sum(map(prod, there))} elements"
