"""Hands a trainer's GPU memory to others for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch

Offload: TypeAlias = Literal["cache", "optimizer", "all"]
"""Parts that leave the GPU: unused memory that torch's allocator keeps; the optimizer's state too; the model's weights
and gradients too."""


class GpuMemory:
    """The memory that a rank frees for the time of a reward phase; without a GPU, none.

    Args:
        model: Model whose weights are offloaded under "all"; they must not be sharded over ranks.
        what: Contents to offload.

    Attributes:
        optimizer: Optimizer whose state is offloaded; None until it is made.
    """

    def __init__(self, model: torch.nn.Module, what: Offload = "cache") -> None:
        self._model, self._what = model, what
        self.optimizer: torch.optim.Optimizer | None = None
        self._places: list[tuple[torch.Tensor, torch.device]] = []

    def offload(self) -> None:
        """Hands memory back; what is offloaded lies in main memory until `restore`."""
        for tensor in self._tensors():
            if tensor.device.type == "cuda":
                self._places.append((tensor, tensor.device))
                tensor.data = tensor.data.to("cpu")
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Takes back what was offloaded."""
        places, self._places = self._places, []
        for tensor, device in places:
            tensor.data = tensor.data.to(device)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _tensors(self) -> Iterator[torch.Tensor]:
        if self._what == "all":
            for parameter in self._model.parameters():
                yield parameter
                if parameter.grad is not None:
                    yield parameter.grad
        if self._what in ("optimizer", "all") and self.optimizer is not None:
            for state in self.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))
