"""Tokens a second of each way to sample rollouts with transformers, on one GPU.

The model has the shape of SmolLM2-135M and random weights, so that no sequence ends early. Each way runs in a process
of its own, with a time limit: one that fails leaves its error in the result.

    python -m benchmarks.rollout_speed [--ways eager graph ...] [--batches 16 64 128] [--new-tokens 512] [--out FOLDER]

`plain_graph` is `graph` without shortcuts (`graph_decoder.Shortcuts`). The first generation of a way
includes compiling and capturing, and is reported apart. For the ways by graphs, `likeliest` is the share of greedily
decoded tokens that a forward pass of the model over the whole sequences finds likeliest too.
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
BY_GRAPHS = ("graph", "plain_graph", "graph_autocast")
CHECKED_BUDGETS = (24,) * 30 + (150,) * 3
"""Tokens of each reply that is checked: a batch that shrinks, over two lengths of the cache."""


def model_of(way: str, *, tiny: bool) -> Any:  # noqa: ANN401  # of transformers, possibly under autocast
    """A model of random weights, on the GPU where there is one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = LlamaForCausalLM(LlamaConfig(**(TINY if tiny else SHAPE)))
    in_autocast = way == "graph_autocast"
    model = model.to(device, torch.float32 if in_autocast else torch.bfloat16).eval()
    if in_autocast:  # as accelerate wraps the model of a trainer
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
    return model


def generator_of(way: str, new_tokens: int, prompt: int, *, tiny: bool) -> Generate:
    """A function that samples in one of the ways."""
    import torch

    model = model_of(way, tiny=tiny)
    device, high = next(model.parameters()).device, model.config.vocab_size
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


def likeliest_share(way: str, prompt: int, *, tiny: bool) -> float:
    """Share of greedily decoded tokens that are the likeliest in a forward pass without a cache, in [0, 1]."""
    import torch

    from pkb_gym.training.rollout.graph_decoder import EVERY_SHORTCUT, NO_SHORTCUT, GraphDecoder, TokenChoice

    model = model_of(way, tiny=tiny)
    for parameter in model.parameters():  # so that attention looks at few entries, and a wrong one counts
        parameter.data.mul_(3 if parameter.ndim == 2 else 1)
    decoder = GraphDecoder(model, NO_SHORTCUT if way == "plain_graph" else EVERY_SHORTCUT)
    made = torch.Generator().manual_seed(1)
    lengths = [max(1, prompt - 7 * row) for row in range(len(CHECKED_BUDGETS))]
    prompts = [torch.randint(1, model.config.vocab_size, (length,), generator=made).tolist() for length in lengths]
    replies = decoder.decode(prompts, CHECKED_BUDGETS, TokenChoice(temperature=0.0), (), 0)
    same = 0
    for begin, reply in zip(prompts, replies, strict=True):
        ids = torch.tensor([begin + reply], device=next(model.parameters()).device)
        with torch.no_grad():
            logits = model(input_ids=ids, logits_to_keep=len(reply) + 1).logits[0, :-1]
        same += int((logits.argmax(dim=-1).cpu() == torch.tensor(reply)).sum())
    return same / sum(CHECKED_BUDGETS)


def measure(way: str, batches: Sequence[int], new_tokens: int, prompt: int, *, tiny: bool) -> None:
    """Prints a line of JSON for each batch, with seconds of the first and the second generation, and for the tokens."""
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
    if way in BY_GRAPHS:
        print(json.dumps({"likeliest": round(likeliest_share(way, prompt // 2, tiny=tiny), 4)}), flush=True)


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
    found = {"way": way, "wall_s": round(time.monotonic() - began, 1), "batches": lines, "error": error}
    for line in out.decode().splitlines():
        found |= json.loads(line) if line.startswith('{"likeliest"') else {}
    return found


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
