"""Errors of one output or argument of one call, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.layout import PlacedLeaf
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.problem.tensors import Leaf
from pkb_gym.engine.records.check_report import Mismatch
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.engine.wire.orders import Claim

if TYPE_CHECKING:
    import torch


def wrong_shape(call: Call, placed: PlacedLeaf, claim: Claim | None, expected: torch.Tensor) -> Mismatch | None:
    """An output of another shape or dtype than the baseline's; None where they are the same.

    Args:
        call: Call that the output belongs to.
        placed: Placed leaf of the output.
        claim: Claim of the rank; None for an output as declared, and where nothing was returned.
        expected: Output of the baseline.
    """
    shape, dtype = tuple(expected.shape), str(expected.dtype).removeprefix("torch.")
    if claim is None:
        if placed.leaf.shape is not None:
            return None
        claim = Claim((), "nothing")
    if (claim.shape, claim.dtype) == (shape, dtype):
        return None
    return Mismatch(
        trial=call.plan.trial,
        rank=call.rank,
        output=placed.leaf.name,
        reason="shape_or_dtype",
        shape=shape,
        dtype=dtype,
        wrong_elements=expected.numel(),
        elements=expected.numel(),
        got=f"{claim.shape} {ascii(claim.dtype[:40]).strip(chr(39))}",
        expected=f"{shape} {dtype}",
        rule="shape and dtype",
    )


def wrong_values(
    call: Call,
    output: str,
    rule: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    marks: torch.Tensor,
    before: torch.Tensor | None = None,
) -> Mismatch:
    """An output that has wrong elements.

    Args:
        call: Call that the output belongs to.
        output: Name of the output.
        rule: Description of the rule that it breaks.
        got: Output of the candidate.
        expected: Output of the baseline.
        marks: Mask of the wrong elements, at least one.
        before: Content of an argument before the call; None for outputs, which are poisoned.
    """
    from pkb_gym.engine.problem.rules import wide

    places = marks.nonzero()
    if got.is_floating_point() or got.is_complex():
        distance = (wide(got) - wide(expected)).abs()
        distance = distance.masked_fill(distance.isnan(), float("inf")).masked_fill(~marks, -1)
    else:
        distance = (got.double() - expected.double()).abs().masked_fill(~marks, -1)
    worst = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), got.shape))
    box = None
    if got.dim():
        box = tuple((int(a), int(b)) for a, b in zip(places.amin(0), places.amax(0), strict=True))
    got_text, expected_text = _told_apart(got[worst], expected[worst])
    return Mismatch(
        trial=call.plan.trial,
        rank=call.rank,
        output=output,
        reason="values",
        shape=tuple(got.shape),
        dtype=str(got.dtype).removeprefix("torch."),
        wrong_elements=int(marks.sum()),
        elements=got.numel(),
        bounding_box=box,
        worst_index=worst,
        got=got_text,
        expected=expected_text,
        rule=rule,
        unwritten_elements=_unwritten(call.rank, contents(call, output, got), expected, marks)
        if before is None
        else _unchanged(got, before, marks),
    )


def contents(call: Call, output: str, got: torch.Tensor) -> torch.Tensor:
    """An output as it lies in memory: booleans by their bytes, since copies make True of any byte but zero.

    Args:
        call: Call that the output belongs to.
        output: Name of the output.
        got: Output of the candidate.
    """
    import torch

    if got.dtype is not torch.bool:
        return got
    placed = call.plan.leaves[call.rank][output]
    slot = TensorSlot(placed.offset, tuple(got.shape), "uint8", got.numel())
    return call.candidate_heap.tensor(slot, call.rank)


def is_untouched(rank: int, got: torch.Tensor, before: torch.Tensor | None) -> bool:
    """Whether a whole output holds what lay there before a checked call.

    Args:
        rank: Rank whose output it is.
        got: Output of the candidate; a boolean one as by `contents`.
        before: Content of an argument before the call; None for outputs, which are poisoned.
    """
    import torch

    from pkb_gym.engine.problem.rules import as_integers

    if before is not None:
        return bool((as_integers(got) == as_integers(before)).all())
    return bool((got.contiguous().view(-1).view(torch.uint8) == poison_of(rank)).all())


def modified_argument(call: Call, leaf: Leaf, slot: TensorSlot) -> Mismatch:
    """An argument that does not hold what was put there.

    Args:
        call: Call that the argument belongs to.
        leaf: Leaf of the argument.
        slot: Slot of all bytes of the argument.
    """
    import torch

    before, after = (heap.tensor(slot, call.rank) for heap in (call.reference_heap, call.candidate_heap))
    width = leaf.capacity_bytes // max(1, leaf.capacity)
    differs = before.view(torch.uint8) != after.view(torch.uint8)
    return Mismatch(
        trial=call.plan.trial,
        rank=call.rank,
        output=leaf.name,
        reason="input_modified",
        shape=leaf.shape or (),
        dtype=leaf.dtype,
        # It may have been put right since it was found changed.
        wrong_elements=max(1, int(differs.view(-1, width).any(dim=1).sum())),
        elements=leaf.capacity,
        rule="this argument must stay as it is",
    )


CHANCE_OF_BYTE, CHANCE_OF_NUMBER = 1 / 8, 1 / 256
"""Share of the wrong elements, of one and of two bytes, that may hold poison by chance: values may be few."""


def _unwritten(rank: int, got: torch.Tensor, expected: torch.Tensor, marks: torch.Tensor) -> int:
    """The number of wrong elements that are as before a checked call.

    Some are so by chance, where elements have few bytes: they count if there are more than that, and more than as many
    again as the expected values would lead to, in which the poison may be a value like any other.

    Args:
        rank: Rank whose output it is.
        got: Output of the candidate, a boolean one as by `contents`: no boolean has the poison's byte.
        expected: Output of the baseline.
        marks: Mask of the wrong elements.
    """
    import torch

    def is_poison(elements: torch.Tensor) -> torch.Tensor:
        return (elements.contiguous().view(torch.uint8).view(elements.numel(), -1) == poison_of(rank)).all(dim=1)

    wrong = got[marks]
    count = int(is_poison(wrong).sum())
    chance = {1: CHANCE_OF_BYTE, 2: CHANCE_OF_NUMBER}.get(wrong.element_size(), 0.0)
    if not chance or expected.dtype is torch.bool:
        return count
    usual = float(is_poison(expected.reshape(-1)).double().mean()) if expected.dtype == got.dtype else 0.0
    return count if count > len(wrong) * (chance + 2 * usual) else 0


def _unchanged(got: torch.Tensor, before: torch.Tensor, marks: torch.Tensor) -> int:
    """The number of wrong elements of an argument that are as before the call."""
    from pkb_gym.engine.problem.rules import as_integers

    return int((as_integers(got[marks]) == as_integers(before[marks])).sum())


def _told_apart(got: torch.Tensor, expected: torch.Tensor) -> tuple[str, str]:
    """Two elements in words that differ: by more digits where they are close, by their bits where these alone do."""
    for digits in (6, 17):
        texts = _element_text(got, digits), _element_text(expected, digits)
        if texts[0] != texts[1]:
            return texts
    return f"{texts[0]} (bits {_bits(got)})", f"{texts[1]} (bits {_bits(expected)})"


def _element_text(element: torch.Tensor, digits: int) -> str:
    value = element.item()
    return f"{value:.{digits}g}" if isinstance(value, float | complex) else str(value)


def _bits(element: torch.Tensor) -> str:
    """An element as it lies in memory, the first byte last."""
    import torch

    return f"0x{bytes(element.reshape(1).view(torch.uint8).tolist())[::-1].hex()}"
