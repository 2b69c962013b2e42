"""A policy of 400 thousand parameters that has learnt to submit one of three sources, or to say that it is done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from pkb_gym.training.inputs.chat import render
from pkb_gym.training.scratch_model import Preset, make_model, train_tokenizer
from tests.training.conversations import answer, prompt, submission, tiny_corpus
from tests.training.scripted import say, submit

SHAPE = Preset(1024, 48, width=96, layers=2, heads=3, key_value_heads=1, feed_forward=256, context=2048)
REPLIES = (say("Done."), *(submit(f"speedup {factor}") for factor in (2, 4, 8)))
SHARES = (2, 1, 1, 1)
"""Weights of the replies in what it learns from."""
BEGINS = "<|im_start|>assistant\n"
WINDOW = 24
"""Tokens that a layer attends to, so that what it learns in short contexts holds in long ones."""
STEPS, BATCH, KEPT = 120, 8, (8, 40)
"""Steps, rollouts of a step, and the shortest and the longest end of a context that is kept."""


def write_untrained(folder: Path) -> None:
    """Writes the tokenizer and random weights.

    Its output layer is no copy of its embeddings: vLLM on CPUs keeps that layer packed, and misses updates of a copy.
    """
    tokenizer = train_tokenizer(tiny_corpus(), SHAPE)
    config = make_model(SHAPE, tokenizer, seed=0).config
    config.tie_word_embeddings = False
    config.use_sliding_window, config.sliding_window = True, WINDOW
    config.layer_types = ["sliding_attention"] * SHAPE.layers
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_trained(untrained: Path, folder: Path) -> None:
    """Teaches it the replies after contexts of which every third token is another, and writes it."""
    from transformers import AutoTokenizer

    torch.set_num_threads(1)  # a model this small gains nothing from more
    tokenizer: Any = AutoTokenizer.from_pretrained(untrained)
    model = Qwen3ForCausalLM.from_pretrained(untrained, dtype=torch.float32)
    begins = tokenizer(BEGINS)["input_ids"]
    replies = [tokenizer(reply)["input_ids"] for reply in REPLIES]
    asked, turn = prompt("AllReduce"), [submission("speedup 2"), answer("passed, 2x")]
    contexts = [tokenizer(render(tokenizer, [*asked, *turn * turns]))["input_ids"] for turns in range(3)]
    draw = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    for _ in range(STEPS):
        batch = [
            (_noisy(draw, draw.choice(contexts)[-draw.randint(*KEPT) :], len(tokenizer)) + begins, reply)
            for reply in draw.choices(replies, SHARES, k=BATCH)
        ]
        length = max(len(context) + len(reply) for context, reply in batch)
        ids = torch.zeros(BATCH, length, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, (context, reply) in enumerate(batch):
            whole = torch.tensor(context + reply)
            ids[row, : len(whole)] = whole
            labels[row, len(context) : len(whole)] = whole[len(context) :]
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _noisy(draw: random.Random, context: list[int], vocabulary: int) -> list[int]:
    """A context with a third of its tokens replaced, except at its end."""
    return [
        draw.randrange(vocabulary) if place < len(context) - 4 and draw.random() < 1 / 3 else token
        for place, token in enumerate(context)
    ]
