"""A solution whose arithmetic is of a wider dtype, rounded once at the end.

Imports nothing of the package: its text becomes part of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

NARROW = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Results:
    """The results of a solution.

    Attributes:
        written: Places of arguments that are results.
        floating: Whether each returned value has the dtype of the problem.
        returns: Form of what is returned: "value", "tuple" or "dict".
        keys: Key of each returned value in a dict.
    """

    written: Sequence[int]
    floating: Sequence[bool]
    returns: str
    keys: Sequence[str | None]


def evaluated_in(wide: torch.dtype, solution: Callable[..., object], results: Results) -> Callable[..., object]:
    """The solution, fed with copies of its arguments in a wider dtype.

    Sums over ranks and inside a rank are then as good as exact: a right solution, if the problem does not itself
    prescribe roundings on the way.

    Args:
        wide: Dtype of the copies, float32 or float64.
        solution: Function that takes and gives the problem's own dtypes.
        results: Results of the solution.
    """

    def finer(*args: object) -> object:
        narrow = narrowest(args, wide)
        copies = [converted(arg, wide) for arg in args]
        returned = solution(*copies)
        for place in results.written:
            write(args[place], copies[place])

        def rounded(value: object, floating: bool) -> object:
            return (
                each(value, lambda tensor: tensor.to(narrow) if tensor.dtype == wide else tensor) if floating else value
            )

        if results.returns == "value":
            return rounded(returned, bool(results.floating and results.floating[0]))
        if isinstance(returned, dict):
            floating = dict(zip(results.keys, results.floating, strict=True))
            return {key: rounded(value, bool(floating.get(key))) for key, value in returned.items()}
        assert isinstance(returned, list | tuple)
        return tuple(rounded(value, floating) for value, floating in zip(returned, results.floating, strict=True))

    return finer


def narrowest(value: object, wide: torch.dtype) -> torch.dtype:
    """The dtype of least width among floating tensors, the first of several; `wide` where there is none."""
    found = [wide]
    each(value, lambda tensor: found.append(tensor.dtype) if tensor.dtype in NARROW else None)
    return min(found, key=lambda dtype: dtype.itemsize)


def converted(value: object, wide: torch.dtype) -> object:
    """A copy in which tensors of fewer bits have a wider dtype."""
    if isinstance(value, torch.nn.Linear):
        bias = value.bias is not None
        layer = torch.nn.Linear(value.in_features, value.out_features, bias=bias, dtype=wide)
        layer.load_state_dict({name: parameter.to(wide) for name, parameter in value.state_dict().items()})
        return layer
    return each(
        value,
        lambda t: t.to(wide) if t.dtype in NARROW and t.dtype.itemsize < wide.itemsize else t.clone(),
    )


def each(value: object, change: Callable[[torch.Tensor], object]) -> object:
    """The value with each of its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each(part, change) for key, part in value.items()}
    return type(value)(each(part, change) for part in value) if isinstance(value, list | tuple) else value


def write(to: object, values: object) -> None:
    """Copies tensors into those at the same places."""
    if isinstance(to, torch.Tensor):
        assert isinstance(values, torch.Tensor)
        to.copy_(values)
    elif isinstance(to, list | tuple):
        assert isinstance(values, list | tuple)
        for one, other in zip(to, values, strict=True):
            write(one, other)
