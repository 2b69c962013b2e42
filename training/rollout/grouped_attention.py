"""Attention of one query to a cache whose heads are shared by groups of query heads (grouped-query attention).

Transformers before 5.23 copies keys and values once for each query head of a group, so that a step of decoding reads
and writes the visible cache several times. Here the query heads of a group stand where a sequence of queries would, and
the cache is read once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

BY_GROUPS = "sdpa_by_groups"
"""Name of the attention function among those of transformers."""
OWN_OPTIONS = ("position_bias", "softcap")
"""Options of some models that only the function of transformers knows."""


def attention_by_groups(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention function of transformers; more than one query goes to its `sdpa`.

    Args:
        module: Attention layer.
        query: Query of shape (B, heads, n, size).
        key: Key of shape (B, key heads, L, size).
        value: Value of shape (B, key heads, L, size).
        attention_mask: Mask of shape (B, 1, n, L), or another that is the same for all heads.
        dropout: Dropout, as in `sdpa`.
        scaling: Factor of the scores; by default one over the root of `size`.
        options: Further options of `sdpa`.

    Returns:
        Values of shape (B, n, heads, size), and no weights.
    """
    batch, heads, queries, _ = query.shape
    of_all_heads = attention_mask is None or attention_mask.shape[1] == 1
    plain = not dropout and all(options.get(name) is None for name in OWN_OPTIONS)
    if queries > 1 or heads == key.shape[1] or not of_all_heads or not plain:
        found: tuple[torch.Tensor, torch.Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return found
    by_groups = query.reshape(batch, key.shape[1], -1, query.shape[-1])  # heads of a group are neighbours
    out = scaled_dot_product_attention(by_groups, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(batch, 1, heads, -1), None


@contextlib.contextmanager
def attention_of(model: Any, name: str) -> Iterator[None]:  # noqa: ANN401  # it is wrapped in many ways
    """While it lasts, the model's layers use the attention function of this name."""
    config = model.config
    usual = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = usual


AttentionInterface.register(BY_GROUPS, attention_by_groups)
AttentionMaskInterface.register(BY_GROUPS, sdpa_mask)
