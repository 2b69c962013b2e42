"""Root-mean-square norms as one kernel each, in place of the eight small ones that transformers launches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import rms_norm

KINDS = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"})
"""Classes of transformers that compute weight * x / sqrt(mean(x^2) + epsilon) in float32."""


@contextlib.contextmanager
def fused_norms(model: torch.nn.Module) -> Iterator[int]:
    """While it lasts, the model's norms of these kinds are computed by torch's `rms_norm`.

    The result is rounded once, after the weight is applied; transformers rounds before that too.

    Yields:
        Number of the norms.
    """
    norms = [module for module in model.modules() if type(module).__name__ in KINDS]
    usual = [module.__dict__.get("forward") for module in norms]
    for module in norms:
        module.forward = _forward_of(module)
    try:
        yield len(norms)
    finally:
        for module, forward in zip(norms, usual, strict=True):
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _forward_of(norm: Any) -> Any:  # noqa: ANN401  # a class that each model of transformers has of its own
    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        weight = norm.weight
        dtype = torch.promote_types(weight.dtype, hidden_states.dtype)  # of their product
        return rms_norm(hidden_states.to(dtype), weight.shape, weight.to(dtype), norm.variance_epsilon)

    return forward
