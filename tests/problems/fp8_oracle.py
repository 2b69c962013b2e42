"""8-bit floats by hand, in float64 and from their list of values: the truth of the FP8 problems."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_POSITIVE = [m * 2.0**-9 for m in range(8)] + [(8 + m) / 8 * 2.0**e for e in range(-6, 9) for m in range(8)]
E4M3 = torch.tensor(_POSITIVE[:-1], dtype=torch.float64)
"""All non-negative float8 e4m3 values in ascending order: 0 .. 448; the place of 480 holds NaN."""


def new_history(values: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """Without its oldest entry, with the current maximum at the end."""
    return torch.tensor([*history.tolist()[1:], values.double().abs().max().item()], dtype=history.dtype)


def rounded(values: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """To the nearest multiple of the scale that e4m3 can hold, the even one of two; bfloat16."""
    scale = torch.tensor(max([*new_history(values, history).tolist(), 1e-12]), dtype=torch.bfloat16).float() / 448
    quotient = (values.float() / scale).double()
    size = quotient.abs()
    upper = torch.searchsorted(E4M3, size).clamp(1, len(E4M3) - 1)
    below, above = size - E4M3[upper - 1], E4M3[upper] - size
    take_lower = (below < above) | ((below == above) & (upper % 2 == 1))
    code = torch.where(take_lower, E4M3[upper - 1], E4M3[upper]) * quotient.sign()
    return (code.float() * scale).bfloat16()


def all_rounded(args: list[Mapping[str, torch.Tensor]], name: str) -> torch.Tensor:
    """(W, n): every rank's rounded values."""
    return torch.stack([rounded(a[name], a["amax_history"]) for a in args])
