"""Numbers of several timed calls, drawn by one call of torch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

CALLS_DRAWN_TOGETHER = 16
"""Timed calls whose numbers are drawn by one call of torch, at most; a power of two. A short call's inputs take a GPU
a few microseconds, and its host many times as long."""

BYTES_DRAWN_TOGETHER = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Size in bytes of a tensor of several calls that are drawn together, at most, by the kind of device."""

Fill: TypeAlias = "Callable[[tuple[int, ...], torch.Generator], torch.Tensor]"
"""(shape, generator) -> numbers of that shape."""

SeedOf: TypeAlias = Callable[[int, tuple[str, ...]], int]
"""(trial, stream) -> the seed of that stream of the trial."""


class DrawnTogether:
    """The numbers of several timed calls that are drawn together, of the calls that were last asked for.

    They are a function of trial, stream, draw and shape alone, whatever calls are asked for before: a trial that is
    repeated has the inputs that it had. No two timed blocks of a candidate share what is drawn together, as each begins
    with a trial that `CALLS_DRAWN_TOGETHER` divides: the state of a generator follows from enough of its numbers.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], tuple[int, torch.Tensor]] = {}

    def of_trial(
        self,
        trial: int,
        seed_of: SeedOf,
        device: str,
        draw: tuple[object, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        fill: Fill,
    ) -> torch.Tensor:
        """The numbers of one trial.

        Args:
            trial: Index of the trial.
            seed_of: Function that derives seeds from the evaluator's secret.
            device: Name of the device in torch.
            draw: Identity of the draw: its stream, its number in the stream, its distribution.
            shape: Shape of the numbers of one trial.
            dtype: Dtype of the numbers.
            fill: Function that draws numbers of a shape with a generator.
        """
        import torch

        room = BYTES_DRAWN_TOGETHER[device.partition(":")[0]] // max(1, prod(shape) * dtype.itemsize)
        calls = min(CALLS_DRAWN_TOGETHER, 1 << max(0, room.bit_length() - 1))
        batch, place = divmod(trial, calls)
        drawn, values = self._last.get((draw, shape), (None, None))
        if values is None or drawn != batch:
            generator = torch.Generator(device=device)
            generator.manual_seed(seed_of(batch * calls, ("together", *map(str, (*draw, *shape)))))
            values = fill((calls, *shape), generator)
            if calls > 1:  # else nobody asks for it again, and it may be large
                self._last[draw, shape] = batch, values
        return values[place]

    def forget(self) -> None:
        """Lets go of the numbers, which else stay until the makers of inputs are collected."""
        self._last.clear()
