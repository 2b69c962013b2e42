"""Sources of the fault drill, whose verdicts are known: right, wrong and crashing ones."""

from __future__ import annotations

import random
import re

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import Device, EvalConfig
from tests.faults.targets import ROOT, Submission

CANDIDATES = ROOT / "tests" / "candidates"
CPU_SOURCES = (
    *("good/waits_for_peers.cpp", "good/reads_peers.cpp", "good/reference.py"),
    *("broken/nan_output.cpp", "broken/segfault_on_one_rank.cpp", "broken/wrong_shape.py"),
    "broken/syntax_error.cpp",
)
GPU_SOURCES = (
    *("cuda/good/pushes_with_signals.cu", "cuda/good/reads_peers.cu", "good/reference.py"),
    *("cuda/broken/wrong_values.cu", "cuda/broken/aborts.cu", "broken/wrong_shape.py"),
    "cuda/broken/syntax_error.cu",
)
WORLD_SIZE = 2
TIMEOUTS_S = {"cpu": 8.0, "cuda": 30.0}


def draw_submission(draw: random.Random, device: Device, *, fresh: bool) -> Submission:
    """One of them with a seed of its own, most of them up to the check.

    Args:
        draw: Source of randomness.
        device: Device of the source; ranks share GPUs where there are fewer.
        fresh: Whether no cache may hold it.
    """
    sources = CPU_SOURCES if device == "cpu" else GPU_SOURCES
    name = draw.choice([name for name in sources if not name.endswith("py")] if fresh else sources)
    source = (CANDIDATES / name).read_text(encoding="utf-8")
    expected = re.search(r"expect: (\w+)", source)
    assert expected is not None, name
    if fresh:
        source += f"\n// {draw.random()}\n"
    until = draw.choice((*["check"] * 7, "time"))
    config = EvalConfig(
        device=device,
        world_size=WORLD_SIZE,
        ranks_per_gpu=None if device == "cpu" else -(-WORLD_SIZE // max(1, len(gpus.names()))),
        size="tiny",
        until=until,
        seed=draw.randrange(1 << 30),
        timeout_s=TIMEOUTS_S[device],
    )
    return Submission(name, "AllReduce", source, None if expected[1] == "passed" else expected[1], config)
