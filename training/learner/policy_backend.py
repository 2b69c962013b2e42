"""Generation by the backend that a trainer has: vLLM, continuous batching, or `generate` of transformers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from trl import GRPOTrainer

from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.rollout.early_submission import FinishedSequences, stopped_by
from pkb_gym.training.rollout.even_share import budget_groups, generate_evenly
from pkb_gym.training.rollout.player import Reply

OnFinished: TypeAlias = Callable[[int, list[int]], None]
"""Receives the place of a sequence in the batch, and its new tokens."""


class PolicyBackend:
    """Replies of the policy that a trainer trains.

    Args:
        trainer: Trainer whose policy generates.
        host: Group of all ranks.
        chunk: Maximum number of sequences that are generated at once; None for no limit.

    Attributes:
        context: Maximum length of a sequence in tokens.
    """

    def __init__(self, trainer: GRPOTrainer, host: HostGroup, chunk: int | None = None) -> None:
        self._trainer: Any = trainer
        self._host, self._chunk = host, chunk
        self.context = self._find_context()

    @property
    def needs_all_ranks(self) -> bool:
        """Whether generation is a collective, which all ranks have to call equally often."""
        trainer = self._trainer
        return bool(trainer._dist.is_zero3 or trainer._dist.is_fsdp) or (
            trainer.use_vllm and (trainer.vllm_mode == "server" or trainer.vllm_tensor_parallel_size > 1)
        )

    @property
    def _uses_server(self) -> bool:
        return bool(self._trainer.use_vllm and self._trainer.vllm_mode == "server")

    def _find_context(self) -> int:
        """That of the model, or the shorter one that vLLM was started with; a collective."""
        trainer = self._trainer
        longest = int(trainer.model.config.max_position_embeddings)
        if self._uses_server:
            served = None
            if trainer.accelerator.is_main_process:
                client = trainer.vllm_generation.vllm_client
                served = client.session.get(f"{client.base_url}/v1/models").json()["data"][0].get("max_model_len")
            served = self._host.from_first(served)
            return longest if served is None else min(longest, int(served))
        if trainer.use_vllm:
            return int(trainer.vllm_generation.llm.llm_engine.model_config.max_model_len)
        return longest

    def generate(
        self, prompts: Sequence[list[int]], budgets: Sequence[int], on_finished: OnFinished
    ) -> Sequence[Reply]:
        """A reply to each prompt; a collective where `needs_all_ranks`, to which a rank may come without prompts.

        Args:
            prompts: Token ids of the prompts.
            budgets: Maximum length of each reply in tokens, at least 1; replies may be longer, up to another's budget.
            on_finished: Function called for each sequence, as soon as it is known to be complete.
        """
        if self.needs_all_ranks:
            return self._generate_together(prompts, budgets, on_finished)
        replies = []
        chunk = self._chunk or max(1, len(prompts))
        with self._at_most(max(budgets, default=1)):
            for begin in range(0, len(prompts), chunk):
                with self._watching(lambda place, ids, begin=begin: on_finished(begin + place, ids)):  # type: ignore[misc]
                    found = self._replies(list(prompts[begin : begin + chunk]))
                for place, (ids, _) in enumerate(found):
                    on_finished(begin + place, ids)
                replies += found
        return replies

    def _generate_together(
        self, prompts: Sequence[list[int]], budgets: Sequence[int], on_finished: OnFinished
    ) -> Sequence[Reply]:
        sizes = self._host.gather(list(zip(map(len, prompts), budgets, strict=True)))
        replies: dict[int, Reply] = {}
        for limit, places in budget_groups(sizes, self.context if self._uses_server else math.inf):
            mine = places[self._host.rank]
            with self._at_most(limit):
                found = generate_evenly(self._host, [prompts[place] for place in mine], self._replies)
            for place, reply in zip(mine, found, strict=True):
                on_finished(place, reply[0])
                replies[place] = reply
        return [replies[place] for place in range(len(prompts))]

    def _replies(self, prompts: list[list[int]]) -> list[Reply]:
        ids, logprobs = self._trainer._generate_single_turn(prompts, None, {}, num_generations=1)
        return list(zip(ids, logprobs or [None] * len(ids), strict=True))

    @contextlib.contextmanager
    def _watching(self, on_finished: OnFinished) -> Iterator[None]:
        """Reports each sequence of `generate` as it ends; the other backends return a batch as a whole."""
        trainer = self._trainer
        if trainer.use_vllm or trainer.use_transformers_continuous_batching:
            yield
            return
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        with stopped_by(model, FinishedSequences(trainer.eos_token_ids, on_finished)):
            yield

    @contextlib.contextmanager
    def _at_most(self, max_new_tokens: int) -> Iterator[None]:
        trainer = self._trainer
        limited, name = (
            (trainer.vllm_generation, "max_completion_length")
            if trainer.use_vllm
            else (trainer.generation_config, "max_new_tokens")
        )
        usual = getattr(limited, name)
        setattr(limited, name, min(usual, max_new_tokens))
        try:
            yield
        finally:
            setattr(limited, name, usual)
