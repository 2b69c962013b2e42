"""Gradients of a policy by each kernel of attention: how many batches have one that is not finite, of a finite loss.

A decoder of the shape of SmolLM2-135M with random weights, in bfloat16 under autocast, learns from batches as GRPO has
them: prompts padded on the left, replies on the right, each of a length drawn anew. Last by the kernels that the
recipes choose (`training/processes/attention.py`), and with replies decoded by CUDA graphs in between. Needs a GPU.

    python -m benchmarks.attention_gradients [--seconds 10] [--out FOLDER]
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common import RESULTS, header, make_parser
from benchmarks.rollout_speed import SHAPE
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.processes.attention import use_sound_attention
from pkb_gym.training.rollout.graph_decoder import GraphDecoder, TokenChoice

BATCH, DECODED, NEW_TOKENS = 8, 56, 120
PROMPT, REPLY = (370, 430), (350, 1050)
"""Shortest and longest, in tokens."""
UPDATES = 7
"""Batches between two decodings."""


@dataclass
class Row:
    """Batches by one kernel.

    Attributes:
        kernel: of attention.
        batches: how many.
        not_finite: of them, those with a gradient that is not finite.
        losses_not_finite: likewise of the loss.
        seconds: of all.
    """

    kernel: str
    batches: int = 0
    not_finite: int = 0
    losses_not_finite: int = 0
    seconds: float = 0.0


class Policy:
    """The decoder, and batches for it.

    Args:
        shape: of the decoder, as `LlamaConfig` takes it.
        device: where it lies.
    """

    def __init__(self, shape: dict[str, Any], device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        model: Any = LlamaForCausalLM(LlamaConfig(**shape))
        self.model = model.to(device).train()

    def learn(self, seed: int, prompt: tuple[int, int] = PROMPT, reply: tuple[int, int] = REPLY) -> tuple[bool, bool]:
        """Forward and backward of one batch; whether the loss is finite, and whether all gradients are."""
        rng = random.Random(seed)
        width, longest = prompt[1], rng.randint((reply[0] + reply[1]) // 2, reply[1])
        begin = width - rng.randint(*prompt)
        shape = (BATCH, width + longest)
        ids = torch.randint(5, self.model.config.vocab_size, shape, device=self.device)
        mask = torch.zeros(shape, dtype=torch.long, device=self.device)
        for row in range(BATCH):
            mask[row, begin : width + rng.randint(reply[0], longest)] = 1
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=longest + 1, use_cache=False).logits
        scores = logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, -longest:, None])[:, :, 0]
        learnt = mask[:, width:]
        advantages = torch.randn((BATCH, 1), device=self.device)
        loss = -((scores - scores.detach()).exp() * advantages * learnt).sum() / learnt.sum()
        loss.backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        finite = bool(torch.isfinite(loss)), all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        self.model.zero_grad(set_to_none=True)
        return finite


def series(policy: Policy, kernel: str, seconds: float, before: Callable[[int], None] | None = None) -> Row:
    """Batches for so many seconds.

    Args:
        policy: that learns.
        kernel: name of the row.
        seconds: of it.
        before: is called with the number of every `UPDATES`th batch.
    """
    row, began = Row(kernel), time.monotonic()
    while time.monotonic() - began < seconds:
        if before is not None and row.batches % UPDATES == 0:
            before(row.batches)
        loss, gradients = policy.learn(row.batches)
        row.batches += 1
        row.losses_not_finite += not loss
        row.not_finite += not gradients
    row.seconds = round(time.monotonic() - began, 1)
    print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
    return row


def main() -> int:
    """Measures and saves; exit status 3 without a GPU."""
    parser = make_parser("attention_gradients", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each kernel (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    args = parser.parse_args()
    if not gpus.names():
        print("attention_gradients: no GPU on this machine", file=sys.stderr)
        return 3
    policy = Policy(SHAPE, "cuda")
    policy.learn(0)  # libraries are loaded
    about = header() | {"gpus": list(gpus.names()), "cudnn": torch.backends.cudnn.version()}
    rows: list[Row] = []

    def measure(kernel: str, before: Callable[[int], None] | None = None) -> None:
        rows.append(series(policy, kernel, args.seconds, before))
        text = json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1)
        write_atomically(args.out / "attention_gradients.json", text + "\n")

    measure("torch's choice")
    for kernel in (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(kernel):
            measure(kernel.name.lower())
    use_sound_attention()
    measure("the recipes' choice")
    decoder, rng = GraphDecoder(policy.model), random.Random(0)

    def decode(number: int) -> None:
        prompts = [[7] * rng.randint(*PROMPT) for _ in range(DECODED)]
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            decoder.decode(prompts, [NEW_TOKENS] * DECODED, TokenChoice(), [1], number)

    measure("the recipes' choice, replies decoded in between", decode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
