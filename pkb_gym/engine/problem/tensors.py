"""Arguments and results as flat lists of tensors ("leaves"): what the heap holds and what is compared.

A leaf has a name: `x` for a tensor, `grads[2]` for a list's element, `gate_proj.weight` for a module's,
`psi.values` for a sparse tensor's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem.arguments import Linear, Output, OutputList, Sparse, Tensor, TensorList
from pkb_gym.engine.problem.axes import ITEMSIZE, Axes, resolve_dtype, resolve_shape

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.values import Value


Declared = TypeVar("Declared")


class Leaf(NamedTuple):
    """One tensor of an argument or result, on one rank: a tuple, as layouts make thousands of them.

    Attributes:
        name: Name of the leaf, such as `x` or `grads[2]`.
        owner: Argument or output that the leaf belongs to.
        shape: Shape in numbers; None where it depends on the data.
        dtype: Name of the dtype.
        capacity: Maximum number of elements.
    """

    name: str
    owner: str
    shape: tuple[int, ...] | None
    dtype: str
    capacity: int

    @property
    def capacity_bytes(self) -> int:
        """Most bytes it can have."""
        return self.capacity * ITEMSIZE[self.dtype]


def _leaf(name: str, owner: str, shape: tuple[int, ...], dtype: str) -> Leaf:
    return Leaf(name, owner, shape, dtype, prod(shape))


def argument_leaves(arg: Tensor | TensorList | Linear | Sparse, ax: Axes) -> list[Leaf]:
    """The tensors of one data argument on one rank; those that are None are left out."""
    return _resolved(arg, ax, _argument_leaves)


def output_leaves(out: Output | OutputList, ax: Axes) -> list[Leaf]:
    """The tensors of one returned output on one rank; those that are absent are left out."""
    return _resolved(out, ax, _output_leaves)


def _resolved(declared: Declared, ax: Axes, resolve: Callable[[Declared, Axes], list[Leaf]]) -> list[Leaf]:
    """Resolves a declaration once for the same axes, which the hundreds of calls of a block share."""
    kept = ax.kept_leaves.get(id(declared))
    if kept is None:
        kept = ax.kept_leaves[id(declared)] = declared, tuple(resolve(declared, ax))
    return list(kept[1])


def _argument_leaves(arg: Tensor | TensorList | Linear | Sparse, ax: Axes) -> list[Leaf]:
    if isinstance(arg, Tensor):
        if arg.optional is not None and not ax[arg.optional]:
            return []
        return [_leaf(arg.name, arg.name, resolve_shape(arg.shape, ax), resolve_dtype(arg.dtype, ax))]
    if isinstance(arg, TensorList):
        dtype = resolve_dtype(arg.dtype, ax)
        shapes = enumerate(ax.shapes(arg.shapes))
        return [_leaf(f"{arg.name}[{i}]", arg.name, shape, dtype) for i, shape in shapes if shape is not None]
    if isinstance(arg, Sparse):
        nnz = ax.number(arg.nnz)
        dims = len(resolve_shape(arg.shape, ax))
        indices = _leaf(f"{arg.name}.indices", arg.name, (dims, nnz), "int64")
        return [indices, _leaf(f"{arg.name}.values", arg.name, (nnz,), resolve_dtype(arg.dtype, ax))]
    weight = resolve_shape(arg.shape, ax)
    leaves = [_leaf(f"{arg.name}.weight", arg.name, weight, ax.dtype)]
    return [*leaves, _leaf(f"{arg.name}.bias", arg.name, weight[:1], ax.dtype)] if arg.bias else leaves


def _output_leaves(out: Output | OutputList, ax: Axes) -> list[Leaf]:
    dtype = resolve_dtype(out.dtype, ax)
    if isinstance(out, OutputList):
        shapes = enumerate(ax.shapes(out.shapes))
        return [_leaf(f"{out.name}[{i}]", out.name, shape, dtype) for i, shape in shapes if shape is not None]
    if out.when is not None and not ax[out.when]:
        return []
    if out.capacity is not None:
        return [Leaf(out.name, out.name, None, dtype, ax.number(out.capacity))]
    return [_leaf(out.name, out.name, resolve_shape(out.shape, ax), dtype)]


def flatten_value(value: Value) -> list[torch.Tensor]:
    """The tensors of an argument's value, in the order of `argument_leaves`."""
    parts = value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if part is not None]


def check_value(problem: str, arg: Tensor | TensorList | Linear | Sparse, value: Value, ax: Axes) -> None:
    """Compares a drawn value with its declaration.

    Raises:
        DeclarationError: kind, shape or dtype differ.
    """
    expected = argument_leaves(arg, ax)
    tensors = flatten_value(value)
    if len(expected) != len(tensors):
        raise DeclarationError(f"{problem}: {arg.name} has {len(tensors)} tensors, declared are {len(expected)}")
    for leaf, tensor in zip(expected, tensors, strict=True):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != leaf.shape or dtype != leaf.dtype:
            what = f"{leaf.name} on rank {ax.r} is {tuple(tensor.shape)} {dtype}"
            raise DeclarationError(f"{problem}: {what}, declared {leaf.shape} {leaf.dtype}")
