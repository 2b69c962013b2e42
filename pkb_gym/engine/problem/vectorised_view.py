"""`tensor.view(dtype)` for dtypes of one width, where `torch.vmap` of older versions of torch does not know it."""

from __future__ import annotations

from typing import Any

import torch


class _View(torch.autograd.Function):
    """A function of our own may define its own vectorisation."""

    @staticmethod
    def forward(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: object) -> None:  # noqa: ANN401  # torch's own
        """Nothing is kept: there are no gradients of bit patterns."""

    @staticmethod
    def vmap(
        _: object, in_dims: tuple[int, None], tensor: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, int]:
        return tensor.view(dtype), in_dims[0]


def is_vectorised(tensor: torch.Tensor) -> bool:
    """Whether the tensor stands for many at once, inside `torch.vmap`."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def view_as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bits under another dtype of the same width; no copy."""
    viewed: torch.Tensor = _View.apply(tensor, dtype)  # type: ignore[no-untyped-call]  # unannotated
    return viewed
