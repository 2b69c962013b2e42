"""Sampling of replies from a policy: with transformers, or with vLLM where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from accelerate import PartialState
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from trl import ModelConfig

from pkb_gym.agents.local_model import end_tokens
from pkb_gym.engine.errors import ConfigError, InfrastructureError

Tokens = list[int]
Backend = Literal["transformers", "continuous", "vllm"]
"""transformers: `generate`, batch by batch; continuous: its continuous batching, which has no padding."""


@dataclass(frozen=True)
class SamplingConfig:
    """The settings of sampling.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: Cumulative probability of the candidate tokens.
        top_k: Maximum number of candidate tokens; 0 for no limit.
        batch_size: Number of sequences that are generated together by `generate`; the others decide for themselves.
        vllm_memory: Share of a GPU's memory that vLLM takes.
        keep_memory: Whether torch keeps unused GPU memory between calls, as nothing else needs it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    batch_size: int = 32
    vllm_memory: float = 0.9
    keep_memory: bool = False


class ReplySampler(Protocol):
    """Continues sequences of tokens."""

    @property
    def context(self) -> int:
        """Longest sequence in tokens that the model takes."""

    def sample(self, sequences: Sequence[Tokens], budgets: Sequence[int], seed: int) -> list[Tokens]:
        """One reply to each sequence.

        Args:
            sequences: Token ids so far.
            budgets: Maximum length of each reply in tokens, at least 1.
            seed: Seed of the sampling; the same sequences, budgets and seed give the same replies.

        Returns:
            Token ids, up to and including the end of the turn where it was reached.
        """


def open_sampler(
    backend: Backend, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, config: SamplingConfig
) -> ReplySampler:
    """Loads the model.

    Args:
        backend: Library that generates.
        model: Path or name, revision and dtype of the model.
        tokenizer: Tokenizer of the model.
        config: Configuration of the sampling.

    Raises:
        ConfigError: vLLM is not installed, or was asked for in several processes.
    """
    if model.model_name_or_path is None:
        raise ConfigError("no model: give --model_name_or_path")
    if backend == "vllm":
        return VllmSampler(model, tokenizer, config)
    loaded = AutoModelForCausalLM.from_pretrained(
        model.model_name_or_path,
        revision=model.model_revision,
        dtype=model.dtype,
        attn_implementation=model.attn_implementation,
    )
    policy = loaded.to(PartialState().device)
    return (ContinuousSampler if backend == "continuous" else TransformersSampler)(policy, tokenizer, config)


class TransformersSampler:
    """Samples with `generate` of transformers.

    Args:
        model: Model on its device.
        tokenizer: Tokenizer of the model.
        config: Configuration of the sampling.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: SamplingConfig) -> None:
        self._model = model.eval()
        self._config = config
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._ends = end_tokens(model.generation_config, tokenizer)
        self._settings = {"do_sample": config.temperature > 0, "eos_token_id": self._ends, "pad_token_id": self._pad}
        if config.temperature > 0:
            self._settings |= {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
        # Defaults of the model's own file must not mix with what was asked for.
        model.generation_config = GenerationConfig()

    @property
    def context(self) -> int:
        """Maximum length of a sequence in tokens."""
        return int(self._model.config.max_position_embeddings)

    def sample(self, sequences: Sequence[Tokens], budgets: Sequence[int], seed: int) -> list[Tokens]:
        """Samples a reply to each sequence."""
        set_seed(seed)
        replies: list[Tokens] = [[] for _ in sequences]
        longest_first = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
        size = self._batch_size(len(sequences))
        for begin in range(0, len(sequences), size):
            chosen = longest_first[begin : begin + size]
            room = max(budgets[index] for index in chosen)
            found = self._generate([sequences[index] for index in chosen], room, seed)
            for index, reply in zip(chosen, found, strict=True):
                replies[index] = self._cut(reply, budgets[index])
        if torch.cuda.is_available() and not self._config.keep_memory:
            torch.cuda.empty_cache()  # kernels that are judged on this GPU need memory too
        return replies

    def _batch_size(self, _count: int) -> int:
        return self._config.batch_size

    def _generate(self, sequences: Sequence[Tokens], budget: int, _seed: int) -> list[Tokens]:
        width = max(map(len, sequences))
        ids = torch.full((len(sequences), width), self._pad)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):  # padded on the left: replies begin in one column
            ids[row, width - len(sequence) :] = torch.tensor(sequence)
            mask[row, width - len(sequence) :] = 1
        device = self._model.device
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=budget, **self._settings
            )
        found: list[Tokens] = out[:, width:].tolist()
        return found

    def _cut(self, reply: Tokens, budget: int) -> Tokens:
        end = next((at for at, token in enumerate(reply) if token in self._ends), len(reply))
        return reply[: min(end + 1, budget)]


class ContinuousSampler(TransformersSampler):
    """Samples with continuous batching of transformers: sequences enter and leave the batch one by one.

    Args:
        model: Policy, in evaluation mode.
        tokenizer: Tokenizer of the policy.
        config: Settings of sampling.
    """

    def _batch_size(self, count: int) -> int:
        return max(1, count)

    def _generate(self, sequences: Sequence[Tokens], budget: int, seed: int) -> list[Tokens]:
        found = self._model.generate_batch(
            [list(sequence) for sequence in sequences],
            generation_config=GenerationConfig(max_new_tokens=budget, **self._settings),
            continuous_batching_config=self._cache(sequences, budget, seed),
        )
        if len(found) < len(sequences):
            raise InfrastructureError(f"continuous batching returned {len(found)} of {len(sequences)} replies")
        return [list(output.generated_tokens) for output in found.values()]

    def _cache(self, sequences: Sequence[Tokens], budget: int, seed: int) -> ContinuousBatchingConfig:
        """A cache of the GPU's free memory; in main memory, which others use too, one that holds all sequences."""
        config = ContinuousBatchingConfig(seed=seed)
        if self._model.device.type != "cuda":
            # Versions of transformers differ in the name.
            page: int = getattr(config, "page_size" if hasattr(config, "page_size") else "block_size")
            config.num_blocks = sum(-(-(len(one) + budget) // page) + 1 for one in sequences)
            config.max_batch_tokens = max(sum(map(len, sequences)), len(sequences))
        return config


class VllmSampler:
    """Samples with vLLM, in one process; it spreads a model over GPUs by itself.

    Args:
        model: Path or name, revision and dtype of the model.
        tokenizer: Tokenizer of the model.
        config: Configuration of the sampling.

    Raises:
        ConfigError: vLLM is not installed, or this is one of several processes.
    """

    def __init__(self, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, config: SamplingConfig) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError("backend vllm: vLLM is not installed; `pip install vllm`, or take backend transformers")
        if PartialState().num_processes > 1:
            raise ConfigError("backend vllm runs in one process; start it without `accelerate launch`")
        import vllm

        self._config = config
        self._vllm = vllm
        self._model = vllm.LLM(
            model=model.model_name_or_path,
            revision=model.model_revision,
            dtype=model.dtype or "auto",
            gpu_memory_utilization=config.vllm_memory,
            tensor_parallel_size=max(1, torch.cuda.device_count()),
        )
        self._ends = [tokenizer.eos_token_id]

    @property
    def context(self) -> int:
        """Maximum length of a sequence in tokens."""
        return int(self._model.llm_engine.model_config.max_model_len)

    def sample(self, sequences: Sequence[Tokens], budgets: Sequence[int], seed: int) -> list[Tokens]:
        """Samples a reply to each sequence."""
        config = self._config
        params = [
            self._vllm.SamplingParams(
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                max_tokens=budget,
                seed=seed + number,
                stop_token_ids=self._ends,
            )
            for number, budget in enumerate(budgets)
        ]
        prompts = [{"prompt_token_ids": sequence} for sequence in sequences]
        return [list(answer.outputs[0].token_ids) for answer in self._model.generate(prompts, params, use_tqdm=False)]
