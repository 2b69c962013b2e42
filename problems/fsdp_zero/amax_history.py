"""Shared part of FP8ReduceScatterGrads and FP8AllGatherParams: 8-bit floats scaled by a rolling history of maxima."""

from __future__ import annotations

from math import floor, frexp, log2
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import InputMaker, Stream
from pkb_gym.engine.problem.rules import CheckContext

if TYPE_CHECKING:
    import torch

LARGEST = 448.0
"""Largest finite float8 e4m3."""

RUN = 64
"""Elements that share a magnitude."""

SMALL = 2.0**-48
"""Times this, values of up to 2^6 and the stale maxima of them are below 1e-12."""

CLEAR_SIGNIFICANDS = tuple(j for j in range(129, 256, 2) if j % 7)
"""A maximum of j 2^e puts no bfloat16 number between two float8 numbers, subnormals aside.

So every way of computing the quotient yields the same codes.
"""


def spread_values(make: InputMaker, name: str, spread: float, magnitudes: Stream) -> torch.Tensor:
    """Normal values in runs that differ by up to 2^12, times 2^(-spread .. spread), with a clear maximum.

    The runs' magnitudes are drawn from `magnitudes`, all else is this rank's own.
    """
    import torch

    (count,), dtype = make.spec(name)
    runs = -(-count // RUN)
    magnitude = torch.exp2(-magnitudes.randint(0, 13, runs).float()).repeat_interleave(RUN)[:count]
    values = make.randn(count) * magnitude * 2.0 ** (spread * (2 * make.rand().item() - 1))
    top = values.abs().argmax()
    j = CLEAR_SIGNIFICANDS[int(make.randint(0, len(CLEAR_SIGNIFICANDS)))]
    fraction, exponent = frexp(values[top].abs().item() / j)
    values[top] = values[top].sign() * j * 2.0 ** (exponent if fraction > 0.5 else exponent - 1)
    drawn: torch.Tensor = values.to(dtype)
    return drawn


def history_values(make: InputMaker, name: str, values: torch.Tensor) -> torch.Tensor:
    """Past maxima between 1/64 of the current one and itself, one of which is special.

    On every other rank a kept one is 1.5 to 4 times as large and decides the scale; on the others the oldest, which is
    to be dropped, is 5.7 times as large. No ratio lies near a power of two, which would leave the codes as they are.
    """
    import torch

    (length,), dtype = make.spec(name)
    current = values.abs().max().item()
    history = (current * torch.exp2(-6 * make.rand(length))).to(dtype)
    if (make.rank + make.trial) % 2 and length > 1:
        larger = stale_maxima(current)
        slot = 1 + int(make.randint(0, length - 1))
        history[slot] = larger[int(make.randint(0, len(larger)))]
    else:
        history[0] = 5.7 * current
    return history


def with_least_scale(
    make: InputMaker, values: torch.Tensor, history: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values and their history; on every eighth trial so small that 1e-12 decides the scale, and 0 on one rank."""
    if make.trial % 8 != 6:
        return values, history
    factor = 0.0 if make.trial // 8 % make.ax.W == make.rank else SMALL
    return values * factor, history * factor


def stale_maxima(current: float) -> list[float]:
    """Clear maxima of 1.5 to 4 times `current`, away from 2 and 4 times."""
    unit = 2.0 ** (floor(log2(current)) - 7)
    candidates = [j * unit * 2**k for j in CLEAR_SIGNIFICANDS for k in range(3)]
    return [c for c in candidates if 1.5 <= c / current <= 3.6 and not 1.85 <= c / current <= 2.15]


def published_values(make: InputMaker, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal values, and a history of nothing but 1e-8."""
    import torch

    stream = make.seeded(42 + 1000 * make.problem.number + make.rank + 1_000_003 * make.trial)
    (length,), dtype = make.spec("amax_history")
    return stream.normal(name), torch.full((length,), 1e-8, dtype=dtype, device=make.device)


def scale_of(context: CheckContext, name: str, rank: int) -> torch.Tensor:
    """The rank's scale, 0-dim float32."""
    import torch

    kept = context.tensor("amax_history", rank)[1:]
    current = context.tensor(name, rank).abs().max().to(kept.dtype)
    largest = torch.cat([kept, current.view(1)]).max().clamp(min=1e-12)
    return largest.float() / LARGEST


def rounded(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values as 8-bit floats of that scale, back in their own dtype."""
    import torch

    codes = (values.float() / scale).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(values.dtype)
