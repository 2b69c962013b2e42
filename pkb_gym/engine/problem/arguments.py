"""The kinds of arguments and results that a problem can declare. See `problem.py` for the whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pkb_gym.engine.problem.rules import Check, allclose, exact

Shape: TypeAlias = tuple[str | int, ...] | str
"""Axis names and numbers, one per dimension; or the name of one axis that holds the whole shape."""


@dataclass(frozen=True)
class Tensor:
    """One tensor argument; its contents come from `Trials.inputs`.

    Attributes:
        shape: Symbolic shape; it may differ by rank, as axes may.
        dtype: Name of a dtype, or of an axis of the sizes that holds a dtype or None; None is the problem's floating
            dtype.
        optional: Name of an axis; where that axis is falsy the argument is None.
        mutable: Whether the callee may overwrite it. A change of any other argument is a failure (`input_modified`).
        resident: Reason why no kernel copies it as a whole, as it exceeds the symmetric scratch; None for other
            arguments.
        about: Description of one line, for the agent.
    """

    name: str
    shape: Shape
    dtype: str | None = None
    optional: str | None = None
    mutable: bool = False
    resident: str | None = None
    about: str = ""


@dataclass(frozen=True)
class TensorList:
    """A list of tensors.

    Attributes:
        shapes: Name of an axis that holds one shape (tuple) per element, None where the element is None.
        bare: Name of an axis; where that axis is truthy the list has one element, which `solution` of the python
            dialect receives by itself. Native kernels always get an array.
        may_hold_none: Whether elements can be None, which changes a native kernel's parameter type.
    """

    name: str
    shapes: str
    dtype: str | None = None
    may_hold_none: bool = False
    bare: str | None = None
    mutable: bool = False
    resident: str | None = None
    about: str = ""


@dataclass(frozen=True)
class Linear:
    """A `torch.nn.Linear` argument; a native kernel gets two tensors, `<name>_weight` and `<name>_bias`.

    Attributes:
        shape: (out_features, in_features), as the module's weight.
        bias: False where the module has none.
    """

    name: str
    shape: tuple[str | int, str | int]
    bias: bool = True
    resident: str | None = None
    about: str = ""


@dataclass(frozen=True)
class Sparse:
    """A sparse COO tensor argument, coalesced; a native kernel gets `<name>_indices` (dims, nnz) and `<name>_values`.

    Attributes:
        shape: Shape of the dense tensor; axis names and numbers.
        nnz: Name of the axis that holds the number of stored entries on this rank.
        dtype: Dtype of the values; None is the problem's floating dtype. Indices are int64.
    """

    name: str
    shape: tuple[str | int, ...]
    nnz: str
    dtype: str | None = None
    resident: str | None = None
    about: str = ""


@dataclass(frozen=True)
class Scalar:
    """A number, a mode, or a list of whole numbers or shapes, equal on all ranks unless its axis differs by rank.

    Attributes:
        kind: C++ type of the native dialect: int -> int64_t, float -> double, bool -> bool, str -> String,
            ints -> Array<int64_t>, shapes (a list of tuples in Python) -> Array<Array<int64_t>>.
        axis: Name of the axis that holds the value; None means the axis of the argument's own name.
        optional: Whether the axis may be None, which is handed over as None.
    """

    name: str
    kind: Literal["int", "float", "bool", "str", "ints", "shapes"]
    axis: str | None = None
    optional: bool = False
    about: str = ""


@dataclass(frozen=True)
class Group:
    """A process group argument.

    Attributes:
        axis: Name of the axis that holds None (the argument is None) or the partition, a tuple of tuples of global
            ranks; each rank is handed the group that it is in. None means the axis of the argument's own name.
    """

    name: str
    axis: str | None = None
    about: str = ""


Argument: TypeAlias = Tensor | TensorList | Linear | Sparse | Scalar | Group


@dataclass(frozen=True)
class Output:
    """One tensor that `solution` returns.

    Attributes:
        shape: "?" marks a dimension that depends on the data. A native kernel returns such an output; all others are
            preallocated and handed over after the arguments.
        capacity: Name of the axis that bounds the number of elements, where the shape has "?".
        dtype: Name of a dtype; None is the problem's floating dtype.
        when: Name of an axis; where that axis is falsy the output is absent (left out of a dict, None in a tuple).
        check: Rule under protocol "robust".
        published: Rule of the published benchmark; None where it does not compare this output.
        returned_as: Key in the returned dict, where an argument already has the output's name.
        is_local: Whether each rank computes it from its own arguments alone, so that a wrong kernel earns nothing with
            it (`CheckReport.earned_share`).
    """

    name: str
    shape: Shape
    dtype: str | None = None
    capacity: str | None = None
    when: str | None = None
    check: Check = field(default_factory=exact)
    published: Check | None = field(default_factory=allclose)
    about: str = ""
    returned_as: str | None = None
    is_local: bool = False

    @property
    def key(self) -> str:
        """Its key where `solution` returns a dict."""
        return self.returned_as or self.name

    @property
    def is_returned(self) -> bool:
        """Whether its shape depends on the data, so that it cannot be preallocated."""
        return "?" in self.shape


@dataclass(frozen=True)
class OutputList:
    """A list of tensors that `solution` returns; `shapes` as in `TensorList`."""

    name: str
    shapes: str
    dtype: str | None = None
    check: Check = field(default_factory=exact)
    published: Check | None = field(default_factory=allclose)
    about: str = ""

    @property
    def key(self) -> str:
        """Its key where `solution` returns a dict."""
        return self.name


@dataclass(frozen=True)
class InPlace:
    """The contents of a mutable argument after the call, as a result to be checked."""

    name: str
    check: Check = field(default_factory=exact)
    published: Check | None = None

    @property
    def argument(self) -> str:
        """Name of the argument."""
        return self.name


Result: TypeAlias = Output | OutputList | InPlace
