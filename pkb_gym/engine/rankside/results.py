"""What `solution` of the python dialect returned, taken apart and delivered into the heap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .failures import CandidateError

if TYPE_CHECKING:
    import torch

    from .heap import Heap


def bad_result(message: str) -> CandidateError:
    """What to raise when a result has another structure, shape or dtype than declared."""
    return CandidateError("wrong_shape_or_dtype", message)


def split(returns: str, outputs: Sequence[Mapping[str, Any]], result: object) -> list[list[torch.Tensor]]:
    """The tensors of each declared output.

    Args:
        returns: "value", "tuple" or "dict".
        outputs: per output {"name", "key": of a dict, "list": whether it is a list, "leaves": slots}.
        result: what `solution` returned.

    Raises:
        CandidateError: it is not what was declared.
    """
    if not outputs:
        return []
    parts: Sequence[object]
    if returns == "value":
        parts = [result]
    elif returns == "dict":
        names = [output["key"] for output in outputs if output["leaves"]]
        if not isinstance(result, Mapping) or set(result) != set(names):
            raise bad_result(f"expected a dict with {', '.join(names)}; got {_say(result)}")
        parts = [result.get(output["key"]) for output in outputs]
    else:
        if not isinstance(result, tuple | list) or len(result) != len(outputs):
            names = [output["name"] for output in outputs]
            raise bad_result(f"expected a tuple of {len(names)} ({', '.join(names)}); got {_say(result)}")
        parts = result
    return [_tensors(output, part) for output, part in zip(outputs, parts, strict=True)]


def _tensors(output: Mapping[str, Any], part: object) -> list[torch.Tensor]:
    import torch

    if not output["list"] and not output["leaves"] and part is None:
        return []
    if not output["list"] and isinstance(part, tuple) and all(type(number) is int for number in part):
        part = torch.tensor(part, dtype=torch.int64)  # a size, such as torch.Size
    tensors = list(part) if output["list"] and isinstance(part, list | tuple) else [part]
    if len(tensors) != len(output["leaves"]):
        raise bad_result(f"{output['name']}: expected {len(output['leaves'])} tensors, got {len(tensors)}")
    for tensor in tensors:
        # A subclass could compute its values later, when they are looked at.
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:  # type: ignore[union-attr]
            raise bad_result(f"{output['name']}: expected a plain dense tensor, got {_say(tensor)}")
    return tensors  # type: ignore[return-value]  # checked one by one above


def deliver(
    heap: Heap, outputs: Sequence[Mapping[str, Any]], tensors: Sequence[Sequence[torch.Tensor]]
) -> list[dict[str, Any]]:
    """Copies all returned tensors into their slots.

    Returns:
        Shape and dtype of each, for the evaluator to compare with the declaration.
    """
    for output, parts in zip(outputs, tensors, strict=True):
        deliver_one(heap, output, parts)
    return [describe(tensor) for parts in tensors for tensor in parts]


def deliver_one(heap: Heap, output: Mapping[str, Any], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies one output's tensors into their slots.

    Returns:
        The copies; a tensor whose shape or dtype does not fit is not copied and stands for itself.
    """
    copies = []
    for slot, tensor in zip(output["leaves"], parts, strict=True):
        said = describe(tensor)
        fits = said["shape"] == slot["shape"] if slot["shape"] is not None else tensor.numel() <= slot["capacity"]
        if fits and said["dtype"] == slot["dtype"]:
            copies.append(heap.tensor({**slot, "shape": said["shape"]}).copy_(tensor.detach()))
        else:
            copies.append(tensor)
    return copies


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape and dtype as JSON."""
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _say(value: object) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}, {value.layout}"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__
