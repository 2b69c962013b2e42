"""The shape of a model, by which its memory and its division over GPUs are known; no weights are loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pkb_gym.engine.errors import ConfigError

KNOWN = Path(__file__).with_name("models.json")
"""Configurations of public models by their names on the Hub, for machines that cannot reach it."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder.

    Attributes:
        name: Name or folder of the model.
        parameters: Number of parameters.
        layer_parameters: Number of parameters of the largest layer.
        outer_parameters: Number of parameters outside the layers: embedding and head.
        layers: Number of layers.
        hidden: Width of the residual stream.
        heads: Number of query heads.
        key_value_heads: Number of key and value heads.
        head_dim: Width of a head.
        feed_forward: Width of the feed-forward part.
        vocabulary: Number of tokens.
        context: Longest sequence in tokens.
        is_known_by_name: Whether it was taken from the table of public models.
    """

    name: str
    parameters: int
    layer_parameters: int
    outer_parameters: int
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context: int
    is_known_by_name: bool = False

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in bfloat16."""
        return 2 * self.layers * self.key_value_heads * self.head_dim * 2

    @classmethod
    def of(cls, name: str, revision: str | None = None) -> ModelShape:
        """The shape of a model.

        Args:
            name: Folder with `config.json`, or name of a model on the Hub: of its cache or, last, of `models.json`.
            revision: Revision on the Hub.

        Raises:
            ConfigError: There is no such model here, or it is no decoder.
        """
        config, is_known = _config(name, revision)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        by_layer: dict[str, int] = {}
        total = outer = 0
        for path, parameter in model.named_parameters():
            before, found, rest = path.partition(".layers.")
            total += parameter.numel()
            if found:
                layer = f"{before}.{rest.split('.')[0]}"
                by_layer[layer] = by_layer.get(layer, 0) + parameter.numel()
            else:
                outer += parameter.numel()
        heads = int(text.num_attention_heads)
        return cls(
            name,
            total,
            max(by_layer.values(), default=0),
            outer,
            int(text.num_hidden_layers),
            int(text.hidden_size),
            heads,
            int(getattr(text, "num_key_value_heads", None) or heads),
            int(getattr(text, "head_dim", None) or text.hidden_size // heads),
            int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
            int(text.vocab_size),
            int(text.max_position_embeddings),
            is_known,
        )


def _config(name: str, revision: str | None) -> tuple[Any, bool]:
    """The configuration, and whether it is that of the table."""
    try:
        return AutoConfig.from_pretrained(name, revision=revision, local_files_only=True), False
    except (OSError, ValueError) as error:
        known = _known().get(name)
        if known is None:
            raise ConfigError(
                f"no configuration of the model {name!r} here: neither a folder with config.json, nor in the cache of "
                f"the Hub, nor one of {', '.join(_known())} ({' '.join(str(error).split())[:120]})"
            ) from None
    return AutoConfig.for_model(**known), True


@cache
def _known() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(KNOWN.read_text(encoding="utf-8"))
    return found
