"""Tokens a second of each way to sample rollouts with transformers, on one GPU.

The model has the shape of SmolLM2-135M and random weights, so that no sequence ends early. Each way runs in a process
of its own, with a time limit: one that fails leaves its error in the result.

    python -m benchmarks.rollout_speed [--ways eager graph ...] [--batches 16 64 128] [--new-tokens 512] [--out FOLDER]

`plain_graph` is `graph` without shortcuts (`graph_decoder.Shortcuts`). The first generation of a way
includes compiling and capturing, and is reported apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, make_parser, save

NAME = "rollout_speed"
WAYS = ("eager", "graph", "plain_graph", "graph_autocast", "static", "continuous")
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = SHAPE | {"vocab_size": 64, "hidden_size": 36, "intermediate_size": 32, "num_hidden_layers": 1}

Generate = Callable[[int], int]
"""Generates for a number of sequences, and returns how many tokens each got."""


def generator_of(way: str, new_tokens: int, prompt: int, *, tiny: bool) -> Generate:
    """The model, and a function that samples with it in one of the ways."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = LlamaForCausalLM(LlamaConfig(**(TINY if tiny else SHAPE)))
    in_autocast = way == "graph_autocast"
    model = model.to(device, torch.float32 if in_autocast else torch.bfloat16).eval()
    high = model.config.vocab_size
    if in_autocast:  # as accelerate wraps the model of a trainer
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
    sample = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": new_tokens}

    def inputs(batch: int) -> torch.Tensor:
        return torch.randint(1, high, (batch, prompt), device=device)

    def with_generate(batch: int, **options: Any) -> int:
        ids = inputs(batch)
        more = sample | options | {"eos_token_id": None, "pad_token_id": 0}
        with torch.no_grad():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
        return int(out.shape[1] - prompt)

    if way == "eager":
        return partial(with_generate, disable_compile=True)
    if way == "static":
        return partial(with_generate, cache_implementation="static")
    if way == "continuous":
        from transformers import GenerationConfig

        def continuous(batch: int) -> int:
            config = GenerationConfig(**sample, eos_token_id=-1, pad_token_id=0)
            found = model.generate_batch(inputs(batch).tolist(), generation_config=config, progress_bar=False)
            return min(len(one.generated_tokens) for one in found.values())

        return continuous
    from pkb_gym.training.rollout.graph_decoder import EVERY_SHORTCUT, NO_SHORTCUT, GraphDecoder, TokenChoice

    decoder = GraphDecoder(model, NO_SHORTCUT if way == "plain_graph" else EVERY_SHORTCUT)

    def graph(batch: int) -> int:
        found = decoder.decode(inputs(batch).tolist(), [new_tokens] * batch, TokenChoice(), (), 0)
        return min(map(len, found))

    return graph


def measure(way: str, batches: Sequence[int], new_tokens: int, prompt: int, *, tiny: bool) -> None:
    """Prints a line of JSON for each batch: seconds of the first and of the second generation."""
    import torch

    generate = generator_of(way, new_tokens, prompt, tiny=tiny)
    synchronise = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for batch in batches:
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            length = generate(batch)
            synchronise()
            seconds.append(time.monotonic() - began)
        first_s, second_s = seconds
        figures = {"batch": batch, "tokens": length, "first_s": round(first_s, 2), "seconds": round(second_s, 3)}
        figures |= {"tokens_per_s": round(batch * length / second_s), "ms_per_token": round(1e3 * second_s / length, 2)}
        if torch.cuda.is_available():
            figures["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        print(json.dumps(figures), flush=True)


def in_process(way: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one way of decoding, as far as it came within its time."""
    words = [sys.executable, "-m", f"benchmarks.{NAME}", "--measure", way, "--new-tokens", str(args.new_tokens)]
    words += ["--prompt", str(args.prompt), "--batches", *map(str, args.batches)] + ["--tiny"] * args.tiny
    began = time.monotonic()
    error = None
    try:
        ended = subprocess.run(words, capture_output=True, timeout=args.limit_s, check=False)
        out = ended.stdout
        if ended.returncode:
            error = ended.stderr.decode(errors="replace")[-1500:]
    except subprocess.TimeoutExpired as late:
        out, error = late.stdout or b"", f"not done after {args.limit_s:g} s"
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith('{"batch"')]
    return {"way": way, "wall_s": round(time.monotonic() - began, 1), "batches": lines, "error": error}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures every way, and writes the result."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batches", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=640, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=60.0, help="time limit of a way (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a model of some thousand parameters: whether all ways run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        measure(args.measure, args.batches, args.new_tokens, args.prompt, tiny=args.tiny)
        return
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found = [in_process(way, args) for way in args.ways]
    requested = {"new_tokens": args.new_tokens, "prompt": args.prompt}
    save(NAME, {"gpu": gpu, **requested, "ways": found}, args.out)


if __name__ == "__main__":
    main()
