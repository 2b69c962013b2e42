"""The choice of a decoder for replies: CUDA graphs (`graph_decoder`) where the model allows it, else `generate`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.rollout.early_submission import FinishedSequences, stopped_by
from pkb_gym.training.rollout.graph_decoder import (
    EVERY_SHORTCUT,
    NO_SHORTCUT,
    GraphDecoder,
    OnFinished,
    Shortcuts,
    TokenChoice,
)

logger = logging.getLogger(__name__)

DecodingWay: TypeAlias = Literal["auto", "generate", "graph", "plain_graph"]
"""auto: graph on GPUs, for models that allow it; graph: on the CPU too, without a graph there; plain_graph: without
shortcuts."""

SEEDS = 2**62

PLAIN = {"num_beams": 1, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
"""Options of a generation config that change which token is chosen, and the values at which they do not."""


class Decoding:
    """Decodes for one model.

    Where the graph decoder fails twice, which is logged, it goes on without shortcuts; where that fails twice,
    `generate` takes over for good.

    Args:
        way: Decoding method.
    """

    def __init__(self, way: DecodingWay = "auto") -> None:
        self._way = way
        self._shortcuts: Shortcuts = NO_SHORTCUT if way == "plain_graph" else EVERY_SHORTCUT
        self._decoder: GraphDecoder | None = None
        self._model: Any = None

    def decode(
        self,
        model: Any,  # noqa: ANN401  # it is wrapped in many ways
        sequences: Sequence[Sequence[int]],
        budgets: Sequence[int],
        choice: TokenChoice,
        ends: Sequence[int],
        seed: int,
        on_finished: OnFinished | None = None,
    ) -> list[list[int]] | None:
        """Decodes replies by the graph decoder; returns None where `generate` has to do it."""
        while (decoder := self._decoder_of(model)) is not None:
            without = self._shortcuts == NO_SHORTCUT
            next_way = "`generate` takes over, more slowly" if without else "graphs go on without shortcuts"
            for after in ("everything is captured anew", next_way):
                try:
                    return decoder.decode(sequences, budgets, choice, ends, seed, on_finished)
                except (RuntimeError, TypeError, AttributeError, ValueError, KeyError, NotImplementedError):
                    logger.warning("decoding with CUDA graphs failed; %s", after, exc_info=True)
                    decoder.release()
                    renew_generator(next(model.parameters()).device)
            self._decoder, self._shortcuts = None, NO_SHORTCUT
            if without:
                self._way = "generate"
        return None

    def release(self) -> None:
        """Gives GPU memory back until the next use."""
        if self._decoder is not None:
            self._decoder.release()

    @contextlib.contextmanager
    def in_place_of_generate(
        self,
        model: Any,  # noqa: ANN401
        ends: Sequence[int],
        on_finished: OnFinished,
    ) -> Iterator[None]:
        """While it lasts, `model.generate` decodes this way, and reports each sequence that ends.

        The seed is drawn from torch's CPU generator, whose state is part of checkpoints.
        """
        with stopped_by(model, FinishedSequences(ends, on_finished)):
            usual = model.generate

            def generate(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # whatever `generate` takes and gives
                found = None if args else self._from_arguments(model, on_finished, **kwargs)
                return usual(*args, **kwargs) if found is None else found

            model.generate = generate
            try:
                yield
            finally:
                model.generate = usual

    def _from_arguments(
        self,
        model: Any,  # noqa: ANN401
        on_finished: OnFinished,
        **kwargs: Any,
    ) -> torch.Tensor | None:
        """The result of `generate` for TRL's arguments; None for others."""
        config = kwargs.get("generation_config")
        if set(kwargs) != {"input_ids", "attention_mask", "generation_config"} or config is None:
            return None
        if (choice := choice_of(config)) is None or self._decoder_of(model) is None:
            return None
        ids, mask = kwargs["input_ids"], kwargs["attention_mask"].bool()
        sequences = [row[seen].tolist() for row, seen in zip(ids.cpu(), mask.cpu(), strict=True)]
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        seed = int(torch.randint(SEEDS, ()))
        budgets = [config.max_new_tokens] * len(sequences)
        replies = self.decode(model, sequences, budgets, choice, ends, seed, on_finished)
        if replies is None:
            return None
        width = max(map(len, replies))
        padded = [reply + [config.pad_token_id] * (width - len(reply)) for reply in replies]
        return torch.cat([ids, torch.tensor(padded, device=ids.device)], dim=1)

    def _decoder_of(self, model: Any) -> GraphDecoder | None:  # noqa: ANN401
        if self._way == "generate":
            return None
        if self._way == "auto" and next(model.parameters()).device.type != "cuda":
            return None
        if self._decoder is None or self._model is not model:
            try:
                self._decoder, self._model = GraphDecoder(model, self._shortcuts), model
            except ConfigError as error:
                logger.warning("%s; `generate` decodes, more slowly", error)
                self._way, self._decoder = "generate", None
        return self._decoder


def renew_generator(device: torch.device) -> None:
    """Gives a GPU a generator that no capture knows, seeded from the CPU's generator.

    A capture that fails as it begins leaves the generator in the belief that it is being captured, and all that draws
    from it afterwards fails ("Offset increment outside graph capture").
    """
    if device.type != "cuda":
        return
    fresh = torch.Generator(device)
    fresh.manual_seed(int(torch.randint(SEEDS, ())))
    own_index: int | None = device.index  # torch types it as if it were always there
    index = torch.cuda.current_device() if own_index is None else own_index
    torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


def choice_of(config: Any) -> TokenChoice | None:  # noqa: ANN401  # a GenerationConfig, typed loosely
    """The choice of tokens by a generation config; None for a choice that only `generate` supports."""
    if any(getattr(config, name, None) not in (None, plain) for name, plain in PLAIN.items()):
        return None
    if not config.do_sample:
        return TokenChoice(temperature=0.0)
    numbers = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
    return TokenChoice(**{name: value for name, value in numbers.items() if value is not None})
