"""Decoding with a cache of fixed storage, a token of all sequences at a time, as one CUDA graph.

`generate` of transformers launches some hundred kernels for each token from Python, which takes tens of milliseconds
whatever the size of the batch. Here a token is one launch:

    prefill (eager, left-padded)  ->  cache of fixed storage  ->  step, step, step ... until all sequences have ended

A step reads and writes fixed storage alone: the last tokens, their positions, the mask of valid cache entries, the
cache. It is captured once for each pair of batch size and cache length, both rounded up; longer caches are views of the
same storage. Where no more than a quarter of a batch is left, its entries move to the storage of a smaller one. The
weights are read where they are, so that steps of an optimizer count at once; where they have moved, everything is
captured anew. On the CPU the same steps run without a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.rollout.fused_norms import fused_norms
from pkb_gym.training.rollout.grouped_attention import BY_GROUPS, attention_of

OnFinished = Callable[[int, list[int]], None]
"""Is given a sequence's place in the batch and its new tokens, the ending one included."""

LENGTH_STEP = 256
"""Cache lengths are multiples of it."""
PROMPT_STEP = 64
"""Widths of padded prompts are multiples of it: kernels of attention want aligned masks."""
CHECK_EVERY = 16
"""Steps between two looks at which sequences have ended; a look waits for the GPU."""
SHRINK = 4
"""A batch shrinks to this part once no more of its sequences are open: few sequences write the longest replies."""
SMALLEST = 4
"""Size below which a batch does not shrink: fewer sequences take a step no less time."""
WARM_UP = 2
"""Steps before a capture, in which libraries allocate what they keep."""


@dataclass(frozen=True)
class Shortcuts:
    """Parts of a step that are computed otherwise than the model computes them, to the same result but for rounding.

    Attributes:
        attention: Name of the attention function, see `grouped_attention`.
        norms: Whether norms are fused, see `fused_norms`.
        shrinking: Whether a batch shrinks.
    """

    attention: str = BY_GROUPS
    norms: bool = True
    shrinking: bool = True


EVERY_SHORTCUT, NO_SHORTCUT = Shortcuts(), Shortcuts("sdpa", norms=False, shrinking=False)


@dataclass(frozen=True)
class TokenChoice:
    """The choice of a token.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: Cumulative probability of the candidate tokens.
        top_k: Maximum number of candidate tokens; 0 for no limit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def choose(self, logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """One token of each row.

        The token of the greatest p / e, with e drawn from the exponential distribution of rate 1, has the distribution
        p (the exponential form of the Gumbel-max trick).

        Args:
            logits: Logits of shape (B, V).
            noise: Noise of the same shape, float32, drawn anew for each token; not read where temperature is 0.

        Returns:
            Token ids of shape (B,).
        """
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        scores = logits.float() / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p < 1:
            ordered, places = scores.sort(dim=-1, descending=True)
            before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
            dropped = (before >= self.top_p).scatter(-1, places, before >= self.top_p)
            scores = scores.masked_fill(dropped, -torch.inf)
        return (scores.softmax(dim=-1) / noise).argmax(dim=-1)


class FixedCache:
    """Keys and values of all layers in storage that stays where it is; takes the place of a transformers `Cache`.

    Args:
        batch: Number of sequences.
        length: Maximum number of entries of a sequence.

    Attributes:
        length: Maximum number of entries of a sequence.
        visible: Number of entries that a step attends to, at most `length`.
        position: Index of the entry that a step writes, of shape (1,).
    """

    is_compileable = False

    def __init__(self, batch: int, length: int, device: torch.device) -> None:
        self.batch, self.length, self.visible = batch, length, length
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  # the interface of transformers
        """Positions are always given, so that nobody needs to know."""
        return 0

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes entries of shape (B, heads, n, size): a prompt's at the beginning, a single one at `position`.

        Returns:
            Keys and values that attention reads: the prompt's own entries, or the visible ones.
        """
        # Under autocast, keys come in float32 from the rotation, and attention casts them to the values' dtype.
        new = (keys.to(values.dtype), values)
        self._allocate(layer_idx, new)
        if keys.shape[2] > 1:
            for kept, of in zip(self._layers[layer_idx], new, strict=True):
                kept[:, :, : of.shape[2]] = of
            return new
        seen = [kept[:, :, : self.visible] for kept in self._layers[layer_idx]]
        for kept, of in zip(seen, new, strict=True):
            kept.index_copy_(2, self.position, of)
        return seen[0], seen[1]

    def take(self, other: FixedCache, rows: torch.Tensor, length: int) -> None:
        """Copies the first entries of some sequences of another cache.

        Args:
            other: Cache whose entries are copied.
            rows: Indices of its sequences, as many as this one has.
            length: Number of entries of each sequence.
        """
        for layer, entries in other._layers.items():
            self._allocate(layer, entries)
            for kept, of in zip(self._layers[layer], entries, strict=True):
                kept[:, :, :length] = of[:, :, :length].index_select(0, rows)

    def _allocate(self, layer: int, like: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Storage of a layer for entries like those given, where it has none."""
        if layer not in self._layers:
            shapes = [(self.batch, of.shape[1], self.length, of.shape[3]) for of in like]
            keys, values = (of.new_zeros(shape) for of, shape in zip(like, shapes, strict=True))
            self._layers[layer] = keys, values


class _Batch:
    """Fixed storage for a batch, and the graphs that step in it."""

    def __init__(self, batch: int, length: int, vocabulary: int, device: torch.device, *, sampled: bool) -> None:
        self.cache = FixedCache(batch, length, device)
        self.tokens = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self.positions = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self.valid = torch.zeros((batch, length), dtype=torch.bool, device=device)
        self.noise = torch.ones((batch, vocabulary if sampled else 1), device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def state(self) -> tuple[torch.Tensor, ...]:
        """The tensors that a step changes besides the cache's entries."""
        return self.tokens, self.positions, self.valid, self.cache.position

    def take(self, other: _Batch, rows: Sequence[int], length: int) -> None:
        """Goes on with some sequences of another batch, whose caches have `length` entries."""
        filled = [*rows, *(rows[0] for _ in range(self.cache.batch - len(rows)))]
        places = torch.tensor(filled, device=self.tokens.device)
        self.cache.take(other.cache, places, length)
        self.tokens.copy_(other.tokens[places])
        self.positions.copy_(other.positions[places])
        self.valid.zero_()
        self.valid[:, :length] = other.valid[places, :length]
        self.cache.position.copy_(other.cache.position)


class GraphDecoder:
    """Continues sequences of tokens with a decoder-only model of transformers.

    Args:
        model: Model with attention by torch's `scaled_dot_product_attention`; possibly wrapped by accelerate or peft.
        shortcuts: Computations of a step that differ from the model's.

    Raises:
        ConfigError: the model is of another kind.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401  # it is wrapped in many ways
        shortcuts: Shortcuts = EVERY_SHORTCUT,
    ) -> None:
        if (reason := unsupported(model)) is not None:
            raise ConfigError(f"no decoding with a fixed cache: {reason}")
        self._model, self._shortcuts = model, shortcuts
        self._batches: dict[tuple[int, TokenChoice], _Batch] = {}
        self._weights: tuple[int, ...] = ()
        self._pool: Any = None

    def release(self) -> None:
        """Gives the storage and the graphs back; they are made anew when they are needed."""
        self._batches.clear()
        self._pool = None

    @torch.no_grad()
    def decode(
        self,
        sequences: Sequence[Sequence[int]],
        budgets: Sequence[int],
        choice: TokenChoice,
        ends: Sequence[int],
        seed: int,
        on_finished: OnFinished | None = None,
    ) -> list[list[int]]:
        """One reply to each sequence.

        Args:
            sequences: Token ids so far, at least one each.
            budgets: Maximum length of each reply in tokens, at least 1.
            choice: Method of choosing tokens.
            ends: Tokens that end a reply.
            seed: Seed of the sampling; the same arguments on the same device give the same replies.
            on_finished: Function called with each reply that ended by a token of `ends`, some steps after its end.

        Returns:
            Token ids, up to and including the end where it was reached.
        """
        was_training = self._model.training
        self._model.eval()  # neither dropout nor gradient checkpointing
        try:
            norms = fused_norms(self._model) if self._shortcuts.norms else contextlib.nullcontext()
            with norms, attention_of(self._model, self._shortcuts.attention):
                return self._decode(sequences, budgets, choice, frozenset(ends), seed, on_finished)
        finally:
            self._model.train(was_training)

    def _decode(
        self,
        sequences: Sequence[Sequence[int]],
        budgets: Sequence[int],
        choice: TokenChoice,
        ends: frozenset[int],
        seed: int,
        on_finished: OnFinished | None,
    ) -> list[list[int]]:
        device = next(self._model.parameters()).device
        self._forget_moved_weights()
        width = _rounded(max(map(len, sequences)), PROMPT_STEP)
        batch = self._storage(_batch_size(len(sequences)), width + max(budgets), choice, device)
        generator = torch.Generator(device).manual_seed(seed)
        self._prefill(batch, sequences, width, choice, generator)
        replies: list[list[int]] = [[] for _ in sequences]
        places = {row: row for row in range(len(sequences))}  # open sequence -> its row in the batch
        chosen = [batch.tokens.clone()]
        for step in range(max(budgets)):
            if step + 1 == max(budgets) or len(chosen) == CHECK_EVERY:
                columns = torch.cat(chosen, dim=1).tolist()
                for row, place in sorted(places.items()):
                    if _extend(replies[row], columns[place], budgets[row], ends):
                        del places[row]
                        if on_finished is not None and replies[row][-1] in ends:
                            on_finished(row, replies[row])
                chosen = []
                if not places:
                    break
                batch, places = self._shrunk(batch, places, width + step, choice)
            if step + 1 < max(budgets):
                self._step(batch, width + step, choice, generator)
                chosen.append(batch.tokens.clone())
        return replies

    def _forget_moved_weights(self) -> None:
        weights = tuple(parameter.data_ptr() for parameter in self._model.parameters())
        if weights != self._weights:
            self.release()
            self._weights = weights

    def _storage(self, size: int, length: int, choice: TokenChoice, device: torch.device) -> _Batch:
        found = self._batches.get((size, choice))
        if found is None or found.cache.length < length:
            self._batches.pop((size, choice), None)
            vocabulary = int(self._model.config.get_text_config().vocab_size)
            found = _Batch(size, _rounded(length, LENGTH_STEP), vocabulary, device, sampled=choice.temperature > 0)
            self._batches[size, choice] = found
        return found

    def _shrunk(
        self, batch: _Batch, places: dict[int, int], length: int, choice: TokenChoice
    ) -> tuple[_Batch, dict[int, int]]:
        """A smaller batch for the open sequences, and their rows in it; the same one where they are too many."""
        size = max(SMALLEST, batch.cache.batch // SHRINK)
        if not self._shortcuts.shrinking or size >= batch.cache.batch or len(places) > size:
            return batch, places
        smaller = self._storage(size, batch.cache.length, choice, batch.tokens.device)
        smaller.take(batch, list(places.values()), length)
        return self._shrunk(smaller, {row: place for place, row in enumerate(places)}, length, choice)

    def _prefill(
        self,
        batch: _Batch,
        sequences: Sequence[Sequence[int]],
        width: int,
        choice: TokenChoice,
        generator: torch.Generator,
    ) -> None:
        """Reads the sequences and chooses the first token of each; rows beyond them read a single token."""
        ids = torch.zeros((batch.cache.batch, width), dtype=torch.long)
        valid = torch.zeros((batch.cache.batch, width), dtype=torch.bool)
        valid[:, -1] = True
        for row, sequence in enumerate(sequences):  # padded on the left: replies begin in one column
            ids[row, width - len(sequence) :] = torch.tensor(sequence)
            valid[row, width - len(sequence) :] = True
        ids, valid = ids.to(batch.tokens.device), valid.to(batch.tokens.device)
        causal = torch.ones((width, width), dtype=torch.bool, device=ids.device).tril()
        # A padding token sees itself: attention to nothing would be NaN, and NaN times 0 is NaN for all who skip it.
        mask = (causal & valid[:, None, None, :]) | torch.eye(width, dtype=torch.bool, device=ids.device)
        positions = (valid.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._logits(batch, ids, mask, positions)
        batch.valid.zero_()
        batch.valid[:, :width] = valid
        batch.cache.position.fill_(width)
        batch.positions.copy_(positions[:, -1:] + 1)
        self._draw(batch, choice, generator)
        batch.tokens.copy_(choice.choose(logits, batch.noise)[:, None])

    def _step(self, batch: _Batch, position: int, choice: TokenChoice, generator: torch.Generator) -> None:
        """Reads the last tokens, whose entries go to `position`, and chooses the next ones."""
        length = min(_rounded(position + 1, LENGTH_STEP), batch.cache.length)
        self._draw(batch, choice, generator)
        if batch.tokens.device.type != "cuda":
            self._compute(batch, length, choice)
            return
        if length not in batch.graphs:
            batch.graphs[length] = self._capture(batch, length, choice)
        batch.graphs[length].replay()

    def _compute(self, batch: _Batch, length: int, choice: TokenChoice) -> None:
        """The step that a graph captures."""
        cache = batch.cache
        cache.visible = length
        batch.valid.index_fill_(1, cache.position, value=True)
        logits = self._logits(batch, batch.tokens, batch.valid[:, None, None, :length], batch.positions)
        batch.tokens.copy_(choice.choose(logits, batch.noise)[:, None])
        batch.positions.add_(1)
        cache.position.add_(1)

    def _capture(self, batch: _Batch, length: int, choice: TokenChoice) -> torch.cuda.CUDAGraph:
        kept = [tensor.clone() for tensor in batch.state()]

        def restore() -> None:  # entries beyond the position are overwritten before anybody looks at them
            for tensor, was in zip(batch.state(), kept, strict=True):
                tensor.copy_(was)

        torch.clear_autocast_cache()  # casts of weights belong into the graph
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self._compute(batch, length, choice)
                restore()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None or not any(kept.graphs for kept in self._batches.values()):
            self._pool = torch.cuda.graph_pool_handle()  # a pool ends with the last graph that used it
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._compute(batch, length, choice)
        return graph

    def _logits(self, batch: _Batch, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of the last column, of shape (B, V)."""
        out = self._model(
            input_ids=ids,
            attention_mask=mask,  # of four dimensions, which transformers takes as it is
            position_ids=positions,
            past_key_values=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _draw(self, batch: _Batch, choice: TokenChoice, generator: torch.Generator) -> None:
        if choice.temperature > 0:
            batch.noise.exponential_(generator=generator)


def unsupported(model: Any) -> str | None:  # noqa: ANN401  # it is wrapped in many ways
    """Why a model cannot be decoded with a fixed cache; None where nothing speaks against it."""
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return "the model has an encoder"
    text = config.get_text_config(decoder=True)
    if text is not config:
        return "the model reads more than text"
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if others or getattr(config, "sliding_window", None) is not None:
        return f"layers of the model are of other kinds than full attention: {', '.join(sorted(others)) or 'windows'}"
    if (attention := getattr(config, "_attn_implementation", None)) != "sdpa":
        return f"attention is {attention}, expected sdpa"
    return None


def _extend(reply: list[int], tokens: Sequence[int], budget: int, ends: frozenset[int]) -> bool:
    """Appends tokens up to an end or the budget, and returns whether it was reached."""
    for token in tokens:
        reply.append(token)
        if token in ends or len(reply) == budget:
            return True
    return False


def _batch_size(sequences: int) -> int:
    """The next of 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192 ..."""
    size = 1 << (sequences - 1).bit_length()
    return size * 3 // 4 if size > 32 and sequences <= size * 3 // 4 else size


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step
