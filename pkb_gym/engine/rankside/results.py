"""The results of `solution` of the python dialect, taken apart and delivered into the heap."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pkb_gym.engine.wire.arguments import Result, TensorSlot
from pkb_gym.engine.wire.orders import Claim

from .failures import CandidateError

if TYPE_CHECKING:
    import torch

    from .devices import AnyHeap


PLAIN = {
    "DTensor": "return .full_tensor() or .to_local()",
    "Work": "wait for it, and return the tensor",
    "ndarray": "return torch.from_numpy() of it",
}
"""Type of a value that is taken for a tensor -> how to make one of it."""


def bad_result(message: str) -> CandidateError:
    """The error for a result with another structure, shape or dtype than declared."""
    return CandidateError("wrong_shape_or_dtype", message)


def split(returns: str, outputs: Sequence[Result], result: object) -> list[list[torch.Tensor]]:
    """The tensors of each declared output.

    Args:
        returns: "value", "tuple" or "dict".
        outputs: Declared outputs.
        result: Value that `solution` returned.

    Raises:
        CandidateError: it is not what was declared.
    """
    if not outputs:
        return []
    parts: Sequence[object]
    if returns == "value":
        parts = [result]
    elif returns == "dict":
        names = [output.key for output in outputs if output.slots]
        if not isinstance(result, Mapping) or set(result) != set(names):
            raise bad_result(f"expected a dict with {', '.join(names)}; got {value_in_words(result)}")
        parts = [result.get(output.key) for output in outputs]
    else:
        if not isinstance(result, tuple | list) or len(result) != len(outputs):
            names = [output.name for output in outputs]
            raise bad_result(f"expected a tuple of {len(names)} ({', '.join(names)}); got {value_in_words(result)}")
        parts = result
    return [_tensors(output, part) for output, part in zip(outputs, parts, strict=True)]


def _tensors(output: Result, part: object) -> list[torch.Tensor]:
    import torch

    if not output.is_list and not output.slots and part is None:
        return []
    if not output.is_list and isinstance(part, tuple) and all(type(number) is int for number in part):
        part = torch.tensor(part, dtype=torch.int64)  # a size, such as torch.Size
    if not output.is_list and not output.slots:
        raise bad_result(f"{output.name}: expected None, got {value_in_words(part)}")
    tensors = list(part) if output.is_list and isinstance(part, list | tuple) else [part]
    if len(tensors) != len(output.slots):
        raise bad_result(f"{output.name}: expected {len(output.slots)} tensors, got {len(tensors)}")
    tensors = [_waited_for(tensor) for tensor in tensors]
    for tensor in tensors:
        # A subclass could compute its values later, when they are looked at.
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:  # type: ignore[union-attr]
            remedy = PLAIN.get(type(tensor).__name__, "")
            got = value_in_words(tensor) + (remedy and f"; {remedy}")
            raise bad_result(f"{output.name}: expected a plain dense tensor, got {got}")
    return tensors  # type: ignore[return-value]  # checked one by one above


def _waited_for(value: object) -> object:
    """The plain tensor of a functional collective, which torch waits for when it is used; other values as they are."""
    functional = sys.modules.get("torch.distributed._functional_collectives")
    is_pending = functional is not None and type(value) is functional.AsyncCollectiveTensor
    return value.wait() if is_pending else value  # type: ignore[attr-defined]


class Delivery:
    """The destinations of one call's results. Made before the clock runs, and the same beside baseline and candidate.

    Args:
        heap: Heap that the results are copied into.
        returns, outputs: Structure of the results, see `split`.
        only: Names of the outputs that are copied; by default all.
    """

    def __init__(
        self,
        heap: AnyHeap,
        returns: str,
        outputs: Sequence[Result],
        only: Collection[str] | None = None,
    ) -> None:
        self._returns, self._outputs = returns, outputs
        self._destinations = [
            [Destination(heap, slot) for slot in output.slots] if only is None or output.name in only else None
            for output in outputs
        ]

    def deliver(self, result: object) -> tuple[list[list[torch.Tensor]], list[Claim | None]]:
        """Takes a result apart and copies its tensors.

        Returns:
            Tensors of each output: the copies, or the returned tensors where they are not copied. And, for each copied
            tensor, the claim that the evaluator compares with the declaration.

        Raises:
            CandidateError: it has another structure than declared.
        """
        parts = split(self._returns, self._outputs, result)
        claims: list[Claim | None] = []
        for destinations, tensors in zip(self._destinations, parts, strict=True):
            if destinations is not None:
                for index, destination in enumerate(destinations):
                    tensors[index], claim = destination.take(tensors[index])
                    claims.append(claim)
        return parts, claims


class Destination:
    """The destination of one tensor.

    Args:
        heap: Heap that the tensor lies in.
        slot: Slot of the tensor.

    Attributes:
        slot: Slot of the tensor.
    """

    def __init__(self, heap: AnyHeap, slot: TensorSlot) -> None:
        import torch

        self._heap, self.slot = heap, slot
        self._dtype = getattr(torch, slot.dtype)
        self._tensor = None if slot.shape is None else heap.tensor(slot)
        self._shaped: torch.Tensor | None = None

    def take(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Claim | None]:
        """Copies a tensor; one whose shape or dtype does not fit stands for itself."""
        if self._tensor is not None and tensor.shape == self.slot.shape and tensor.dtype == self._dtype:
            return self._tensor.copy_(tensor.detach()), None
        claim = Claim(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if self.slot.shape is None and tensor.dtype == self._dtype and tensor.numel() <= self.slot.capacity:
            return self._of_shape(claim.shape).copy_(tensor.detach()), claim
        return tensor, claim

    def _of_shape(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The slot's tensor of that shape; a call's results mostly have the one of the call before."""
        if self._shaped is None or self._shaped.shape != shape:
            self._shaped = self._heap.tensor(self.slot.shaped(shape))
        return self._shaped


def value_in_words(value: object) -> str:
    """Description of a value, in words."""
    import torch

    if isinstance(value, torch.Tensor):
        name = type(value).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        return f"{article} {name} of shape {tuple(value.shape)}, {value.dtype}, {value.layout}"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
