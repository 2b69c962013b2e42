"""The arguments and results of a block's calls, in the form that a rank program receives.

Calls whose argument sets differ in nothing but where they lie travel once (`CallRun`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

ListKind: TypeAlias = Literal["tensor", "list", "bare", "linear", "sparse"]
"""Form in which tensors are handed over: by itself; as a list; as the only element of a list, which a solution of the
python dialect gets by itself; as weight and bias of a module; as indices and values of a sparse tensor."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A contiguous tensor in a rank's segment of the heap.

    Attributes:
        offset: Bytes into the segment.
        shape: Numbers; None where the size depends on the data.
        dtype: Name.
        capacity: Most elements that it can have.
    """

    offset: int
    shape: tuple[int, ...] | None
    dtype: str
    capacity: int

    def moved(self, by: int) -> TensorSlot:
        """The same tensor `by` bytes further on."""
        return TensorSlot(self.offset + by, self.shape, self.dtype, self.capacity)

    def shaped(self, shape: tuple[int, ...]) -> TensorSlot:
        """The same tensor with that shape, which the capacity has room for."""
        return TensorSlot(self.offset, shape, self.dtype, self.capacity)


Slots: TypeAlias = tuple[TensorSlot | None, ...]
"""Slots of tensors; None stands for a tensor that is None."""


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A number, a text, None, or nested tuples of them."""

    value: object

    def moved(self, by: int) -> ScalarArgument:  # as those that hold tensors
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class GroupArgument:
    """A process group: the index of a partition of the ranks; None is None."""

    partition: int | None

    def moved(self, by: int) -> GroupArgument:
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """Tensors.

    Attributes:
        kind: Form in which they are handed over.
        slots: Places of the tensors.
        shape: Shape of the dense tensor that a sparse one stands for; else None.
    """

    kind: ListKind
    slots: Slots
    shape: tuple[int, ...] | None = None

    def moved(self, by: int) -> TensorArgument:
        """The same `by` bytes further on."""
        return TensorArgument(self.kind, move(self.slots, by), self.shape)


Argument: TypeAlias = ScalarArgument | GroupArgument | TensorArgument


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a solution of the python dialect.

    Attributes:
        name: Name of the output.
        key: Key in the returned dict.
        is_list: Whether it is a list of tensors.
        slots: Places that its tensors are copied to.
    """

    name: str
    key: str
    is_list: bool
    slots: tuple[TensorSlot, ...]

    def moved(self, by: int) -> Result:
        """The same `by` bytes further on."""
        return Result(self.name, self.key, self.is_list, tuple(slot.moved(by) for slot in self.slots))


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call as one rank makes it.

    Attributes:
        offset, nbytes: The range of the segment that holds its arguments and outputs.
        arguments: Arguments in call order; with the native dialect, preallocated outputs follow.
        results: Results of a solution of the python dialect; empty with the native one.
        returned: Places for the tensors that a native kernel returns.
    """

    offset: int
    nbytes: int
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...] = ()
    returned: tuple[TensorSlot, ...] = ()

    def moved(self, by: int) -> CallSpec:
        """The same call on tensors that lie `by` bytes further on."""
        return CallSpec(
            self.offset + by,
            self.nbytes,
            tuple(argument.moved(by) for argument in self.arguments),
            tuple(result.moved(by) for result in self.results),
            tuple(slot.moved(by) for slot in self.returned),
        )


@dataclass(frozen=True, slots=True)
class CallRun:
    """Calls that differ in nothing but where their tensors lie.

    Attributes:
        first: One of them.
        distances: Bytes from it to each of them.
    """

    first: CallSpec
    distances: tuple[int, ...]


def move(slots: Slots, by: int) -> Slots:
    """Each `by` bytes further on."""
    return tuple(None if slot is None else slot.moved(by) for slot in slots)


def unroll(runs: Iterable[CallRun]) -> list[CallSpec]:
    """Every call of every run, in order."""
    return [run.first.moved(distance) for run in runs for distance in run.distances]
