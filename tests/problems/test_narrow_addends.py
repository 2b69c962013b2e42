"""Addends of half the bits give wrong sums, on few ranks and on many, where single elements may be off by more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.problems.support import Run, run_reference

LEAST_EXPONENT, MANTISSA_BITS = -4, 4
SHARE_A_SCALE = 32


def narrow(addend: torch.Tensor) -> torch.Tensor:
    """Rounded to eight bits: a sign, three of exponent and four of mantissa, scaled by the tensor."""
    scale = addend.abs().max() / 2.0 ** (LEAST_EXPONENT + 7)
    exponent = (addend / scale).abs().clamp(min=2.0**LEAST_EXPONENT).log2().floor()
    step = scale * torch.exp2(exponent - MANTISSA_BITS)
    return (addend / step).round() * step


def sharing_a_scale(addend: torch.Tensor) -> torch.Tensor:
    """Rounded to eight bits, of a scale that 32 neighbours share."""
    blocks = addend.flatten().split(SHARE_A_SCALE)
    steps = [block.abs().max().clamp(min=1e-30) / 127 for block in blocks]
    return torch.cat([(block / step).round() * step for block, step in zip(blocks, steps, strict=True)]).view_as(addend)


def tensors(run: Run) -> Sequence[torch.Tensor]:
    return [args["tensor"].double() for args in run.args]


def products(run: Run) -> Sequence[torch.Tensor]:
    return [args["A_local"].double() @ args["B_local"].double() for args in run.args]


def gradients(run: Run) -> Sequence[torch.Tensor]:
    return [args["grad_fc1_1_lora_A"].double() for args in run.args]


ADDENDS: dict[str, tuple[str, Callable[[Run], Sequence[torch.Tensor]]]] = {
    "AllReduce": ("out", tensors),
    "Reduce": ("out", tensors),
    "ReduceScatter": ("out", tensors),
    "GemmAllReduce": ("out", products),
    "GemmReduceScatter": ("C_local", products),
    "MoELoRAGroupGemmBackward": ("grad_fc1_1_lora_A", gradients),
}
"""Problem -> an output that is a sum over ranks, or this rank's rows of one, and what is added up."""


@pytest.mark.parametrize("world_size", [2, 8])
@pytest.mark.parametrize(
    ("name", "code"),
    [(name, narrow) for name in ADDENDS] + [(name, sharing_a_scale) for name in ADDENDS if not name.startswith("Gemm")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_eight_bits_of_an_addend_are_too_few(
    name: str, world_size: int, code: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    run = run_reference(name, world_size=world_size)
    run.assert_passes_own_checks()
    leaf, addends_of = ADDENDS[name]
    addends = addends_of(run)
    rank = run.axes[0].dst if name == "Reduce" else world_size - 1
    own = [addend if other == rank else code(addend) for other, addend in enumerate(addends)]
    for terms, is_wrong in ((addends, False), (own, True)):
        total = torch.stack(list(terms)).sum(0)
        rows = run.outputs[rank][leaf].shape[0]
        first = rank * rows if rows < total.shape[0] else 0
        got = total[first : first + rows].to(torch.bfloat16)
        assert bool(run.wrong(rank, leaf, got).any()) is is_wrong
