"""Copies of many tensors by one call of torch, which takes as long as one small copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_HELD_BYTES = 1 << 26
"""Size in bytes of the tensors that wait to be copied, roughly at most."""


class TensorCopies:
    """Copies that are made together."""

    def __init__(self) -> None:
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []
        self._nbytes = 0

    def add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Adds a copy, and makes all of them where they would hold much memory."""
        self._targets.append(target)
        self._sources.append(source)
        self._nbytes += target.nbytes
        if self._nbytes > MAX_HELD_BYTES:
            self.make()

    def make(self) -> None:
        """Makes the copies."""
        import torch

        if self._targets:
            torch._foreach_copy_(self._targets, self._sources)
        self._targets, self._sources, self._nbytes = [], [], 0
