"""A model whose weights are loaded here, by transformers: a folder, a GGUF file, or a name on the Hub.

Episodes that wait for a reply at the same time are generated together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pkb_gym.agents.chat_format import chat_messages
from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import (
    Agent,
    AgentError,
    AgentProvider,
    AgentTask,
    Message,
    Reply,
    RequestRefused,
    Setting,
)
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.chat_markers import break_tokens_of_others
from pkb_gym.envs.text.reply import split_thoughts

NEEDED = "agent transformers needs the package `transformers`: pip install 'pkb-gym[train]'"


class LocalOptions(Record):
    """Options of the agent."""

    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the sampling; 0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of probability to choose from."""
    max_tokens: int = Field(default=4096, ge=1)
    """Longest reply in tokens."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of the weights."""
    device: str = "auto"
    """Device of the model: auto, cpu, cuda:0; kernels that are judged need memory too."""
    batch_size: int = Field(default=16, ge=1)
    """Replies that are generated together, at most; with 1, and one episode at a time, equal seeds reply alike."""


@dataclass(frozen=True)
class _PendingPrompt:
    """A conversation that waits for its reply.

    Attributes:
        ids: Tokens of the conversation.
        room: Number of tokens that the reply may have, at least 1.
        seed: Seed of the sampling.
        written: Tokens of the reply so far.
        reply: Reply, once it is complete.
    """

    ids: list[int]
    room: int
    seed: int
    written: list[int] = field(default_factory=list)
    reply: Future[Reply] = field(default_factory=Future)


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of agents by a model of transformers, for `registry.open_agent`.

    Raises:
        ConfigError: The package is missing, or there is no such model.
    """
    chosen = parse_options("transformers", LocalOptions, options)
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ConfigError(NEEDED) from None
    name, more = _where(argument.strip())
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **more)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=chosen.dtype, **more)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"agent transformers: {argument!r} could not be loaded: {reason}") from None
    if not tokenizer.chat_template:
        raise ConfigError(f"agent transformers: {argument!r} has no chat template; take an instruction-tuned model")
    return LocalProvider(argument, chosen, tokenizer, model)


def _where(argument: str) -> tuple[str, dict[str, str]]:
    """Folder or name of a model, and the GGUF file in it, if it is one."""
    path = Path(argument).expanduser()
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return (str(path) if path.exists() else argument), {}


class LocalProvider:
    """Agents of one model; a thread generates for all of them.

    Args:
        name: Name of the model, as it was given.
        options: Options of the agent.
        tokenizer: Tokenizer of the model.
        model: Model of transformers, on the CPU.
    """

    def __init__(self, name: str, options: LocalOptions, tokenizer: Any, model: Any) -> None:  # noqa: ANN401  # of many classes
        import torch

        self._name, self._options, self._tokenizer = name, options, tokenizer
        device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(device).eval()
        self._ends = end_tokens(model.generation_config, tokenizer)
        self._context = int(getattr(model.config, "max_position_embeddings", 0)) or None
        self._waiting: queue.SimpleQueue[_PendingPrompt | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._generate_all, name="pkb-local-model", daemon=True)
        self._thread.start()

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Name of the model and options of its replies."""
        return {"model": Path(self._name).name, **self._options.model_dump(exclude={"device", "batch_size"})}

    def begin(self, task: AgentTask) -> Agent:
        """The agent of one episode."""
        return LocalAgent(self, task.seed)

    def close(self) -> None:
        """Ends the thread after the replies that are being generated."""
        self._waiting.put(None)

    def reply(self, messages: Sequence[Message], seed: int) -> Reply:
        """The model's reply.

        Raises:
            RequestRefused: The conversation is too long for the model.
            AgentError: The model failed.
        """
        text = self._tokenizer.apply_chat_template(
            break_tokens_of_others(chat_messages(messages, with_tools=False), self._tokenizer),
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        room = self._options.max_tokens
        if self._context is not None and (room := min(room, self._context - len(ids))) < 1:
            raise RequestRefused(f"the conversation has {len(ids)} tokens, and the model's context {self._context}")
        pending = _PendingPrompt(ids, room, seed)
        self._waiting.put(pending)
        return pending.reply.result()

    def _generate_all(self) -> None:
        while (pending := self._waiting.get()) is not None:
            batch = [pending]
            ended = False
            while len(batch) < self._options.batch_size:
                try:
                    another = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    ended = True
                    break
                batch.append(another)
            try:
                replies = self._generate(batch)
            except Exception as error:  # noqa: BLE001  # raised again where the reply is waited for
                for one in batch:
                    one.reply.set_exception(AgentError(f"the model failed: {error}"))
            else:
                for one, reply in zip(batch, replies, strict=True):
                    one.reply.set_result(reply)
            if ended:
                return

    def _generate(self, batch: Sequence[_PendingPrompt]) -> list[Reply]:
        """The replies of a batch; conversations with more room go on where others have reached their end."""
        import torch

        torch.manual_seed(batch[0].seed)
        going_on = list(batch)
        while going_on:
            steps = min(pending.room - len(pending.written) for pending in going_on)
            for pending, ids in zip(going_on, self._continued(going_on, steps), strict=True):
                end = next((at + 1 for at, token in enumerate(ids) if token in self._ends), len(ids))
                pending.written.extend(ids[:end])
            going_on = [pending for pending in going_on if not self._has_ended(pending)]
        return [self._read(pending) for pending in batch]

    def _continued(self, batch: Sequence[_PendingPrompt], steps: int) -> list[list[int]]:
        """So many further tokens of each reply, and any after its end."""
        import torch

        prompts = [pending.ids + pending.written for pending in batch]
        width = max(map(len, prompts))
        pad = self._ends[0]
        ids = torch.full((len(batch), width), pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):  # padded on the left: replies begin in one column
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        sampled = self._options.temperature > 0
        how = {"temperature": self._options.temperature, "top_p": self._options.top_p, "top_k": 0} if sampled else {}
        device = self._model.device
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=steps,
                do_sample=sampled,
                eos_token_id=self._ends,
                pad_token_id=pad,
                **how,
            )
        rows: list[list[int]] = out[:, width:].tolist()
        return rows

    def _has_ended(self, pending: _PendingPrompt) -> bool:
        return pending.written[-1] in self._ends or len(pending.written) >= pending.room

    def _read(self, pending: _PendingPrompt) -> Reply:
        written = pending.written
        split = split_thoughts(self._tokenizer.decode(written, skip_special_tokens=True))
        tokens = TokenCounts(prompt=len(pending.ids), completion=len(written))
        reason = "stop" if written[-1] in self._ends else "length"
        return Reply(split.answer, split.thoughts, tokens=tokens, finish_reason=reason)


@dataclass(frozen=True)
class LocalAgent:
    """One conversation with the model.

    Attributes:
        provider: Provider that generates the replies.
        seed: Seed of the episode.
    """

    provider: LocalProvider
    seed: int

    def act(self, messages: Sequence[Message]) -> Reply:
        """The model's reply to a conversation."""
        return self.provider.reply(messages, self.seed + len(messages))


def end_tokens(config: Any, tokenizer: Any) -> list[int]:  # noqa: ANN401  # of many classes
    """Tokens that end a reply: a model may have several.

    Args:
        config: Generation config of the model; None where it has none.
        tokenizer: Tokenizer of the model.

    Raises:
        ConfigError: The model has no token that ends a reply.
    """
    ends = getattr(config, "eos_token_id", None)
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    found = sorted({*listed, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])})
    if not found:
        raise ConfigError("the model has no token that ends a reply")
    return found
