"""The distinguishing features of a call, for the author of a kernel that failed it: arguments that are no tensors.

Checked calls differ in their modes, which the task text gives for a typical call alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Group, Problem, Scalar, Tensor, Value

if TYPE_CHECKING:
    import torch

MAX_VALUE = 60
"""Characters of one argument."""

MAX_WORDS = 400
"""Characters of all."""

MAX_ELEMENTS = 1 << 22
"""Maximum number of elements of a tensor that is searched for what is not finite."""


def call_words(problem: Problem, ax: Axes, rank: int, args: Sequence[Mapping[str, Value]]) -> str:
    """A rank's arguments other than tensors, and what is unusual about tensors; empty where there is neither.

    Args:
        problem: Declaration of the problem.
        ax: Axes of the rank in this call.
        rank: Index of the rank.
        args: Data arguments of every rank.
    """
    return _cut(", ".join([*_modes(problem, ax), *_unusual(problem, rank, args)]), MAX_WORDS)


def _modes(problem: Problem, ax: Axes) -> Iterator[str]:
    for arg in problem.args:
        if isinstance(arg, Scalar):
            yield f"{arg.name}={_cut(repr(ax[arg.axis or arg.name]), MAX_VALUE)}"
        elif isinstance(arg, Group) and ax[arg.axis or arg.name] is not None:
            yield f"{arg.name} of ranks {_cut(str(ax[arg.axis or arg.name]), MAX_VALUE)}"


def _unusual(problem: Problem, rank: int, args: Sequence[Mapping[str, Value]]) -> Iterator[str]:
    """Tensors that may be None and are, those without elements, and those that hold NaN or infinity on some rank."""
    for arg in problem.data_args:
        own = args[rank][arg.name]
        if own is None:
            yield f"{arg.name}=None"
        elif isinstance(arg, Tensor) and not _tensors(own)[0].numel():
            yield f"{arg.name} without elements"
        held = [_not_finite(tensor) for values in args for tensor in _tensors(values[arg.name])]
        words = sorted(set().union(*held))
        if words:
            yield f"{arg.name} with {' and '.join(words)}"


def _tensors(value: Value) -> list[torch.Tensor]:
    parts = value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if part is not None]


def _not_finite(tensor: torch.Tensor) -> set[str]:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.itemsize == 1:
        return set()
    if tensor.numel() > MAX_ELEMENTS or tensor.isfinite().all():
        return set()
    return {word for word, there in (("NaN", tensor.isnan()), ("infinities", tensor.isinf())) if there.any()}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
