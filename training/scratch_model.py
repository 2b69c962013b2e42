"""A small decoder from scratch: a tokenizer trained on the corpus and a Qwen3 of chosen size with random weights.

    python -m pkb_gym.training.scratch_model --corpus data/corpus --output runs/scratch --preset small

What it writes opens with `AutoModelForCausalLM.from_pretrained`, and TRL takes it for a Qwen3: its chat template, its
special tokens, its tool calls. The same corpus, preset and seed give the same files.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template

from pkb_gym.corpus.conversations import submissions
from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe
from pkb_gym.training.inputs.chat import render
from pkb_gym.training.inputs.rows import load_corpus

PAD, TURN_BEGINS, TURN_ENDS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own, and yet text: what parses a reply must still see them after decoding."""

PresetName = Literal["smoke", "small", "base"]


@dataclass(frozen=True)
class Preset:
    """Size of a model."""

    vocabulary: int
    """Tokens before those with a meaning of their own."""
    token_chars: int
    """Longest token."""
    width: int
    layers: int
    heads: int
    """Query heads; each has width / heads dimensions."""
    key_value_heads: int
    feed_forward: int
    context: int
    """Longest sequence in tokens."""


PRESETS: dict[PresetName, Preset] = {
    "smoke": Preset(2048, 48, width=128, layers=4, heads=4, key_value_heads=2, feed_forward=384, context=8192),
    "small": Preset(8192, 48, width=384, layers=8, heads=6, key_value_heads=2, feed_forward=1280, context=16384),
    "base": Preset(16384, 48, width=768, layers=12, heads=12, key_value_heads=4, feed_forward=2304, context=16384),
}
"""About 1, 20 and 100 million parameters."""


@dataclass
class ScratchArguments:
    """Arguments of this recipe."""

    corpus: str = field(metadata={"help": "Folder or JSONL file written by `pkb export corpus`."})
    output: str = field(metadata={"help": "Folder for model and tokenizer."})
    preset: PresetName = field(default="small", metadata={"help": "Size: about 1, 20 or 100 million parameters."})
    seed: int = field(default=0, metadata={"help": "Of the weights."})


def main(argv: list[str] | None = None) -> None:
    """Makes a model and writes it.

    Raises:
        ConfigError: an argument is of no use.
    """
    (args,) = parse_arguments((ScratchArguments,), argv, prog="scratch_model")
    write_scratch_model(load_corpus(args.corpus), Path(args.output), args.preset, args.seed)
    print(f"{args.preset} model in {args.output}")


def write_scratch_model(corpus: Dataset, output: Path, preset: PresetName, seed: int) -> None:
    """Trains the tokenizer, draws the weights, and writes both into `output`.

    Raises:
        ConfigError: the preset does not exist, or the corpus is empty.
    """
    if preset not in PRESETS:
        raise ConfigError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    tokenizer = train_tokenizer(corpus, PRESETS[preset])
    model = make_model(PRESETS[preset], tokenizer, seed)
    # The model comes last: a folder with weights in it is whole.
    tokenizer.save_pretrained(output)
    model.save_pretrained(output)


def train_tokenizer(corpus: Dataset, preset: Preset) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the corpus, with Qwen3's chat template and special tokens.

    Merges may span words, up to a whole line: kernels of one family share most of their lines, and sequences of lines
    are several times shorter than sequences of words. Digits stay apart, so that a block size is spelt, not looked up.

    Raises:
        ConfigError: the corpus is empty.
    """
    if len(corpus) == 0:
        raise ConfigError("a tokenizer is trained on a corpus, and this one has no rows")
    shell = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), chat_template=qwen3_chat_template)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Sources stand in tool calls as JSON, where a line ends in backslash n.
            pre_tokenizers.Split(Regex(r"\\n|\n"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=preset.vocabulary,
        max_token_length=preset.token_chars,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(shell, corpus), trainer)
    tokenizer.add_special_tokens([PAD, TURN_BEGINS, TURN_ENDS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=qwen3_chat_template,
        eos_token=TURN_ENDS,
        pad_token=PAD,
        model_max_length=preset.context,
    )


def make_model(preset: Preset, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights, which depend on nothing but preset, vocabulary and seed."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=preset.width,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.key_value_heads,
        head_dim=preset.width // preset.heads,
        intermediate_size=preset.feed_forward,
        max_position_embeddings=preset.context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _texts(tokenizer: PreTrainedTokenizerFast, corpus: Dataset) -> Iterator[str]:
    """The texts to tokenize: the conversations between their special tokens, and the sources as they are."""
    boundary = re.compile("|".join(map(re.escape, (PAD, TURN_BEGINS, TURN_ENDS, *TAGS))))
    for row in _rows(corpus):
        messages = row["messages"]
        yield from boundary.split(render(tokenizer, messages))
        yield from submissions(messages)


def _rows(corpus: Dataset) -> Iterable[dict[str, list[dict[str, object]]]]:
    return corpus.select_columns(["messages"])  # type: ignore[no-any-return]  # datasets types its rows as Any


if __name__ == "__main__":
    run_recipe(main)
