"""World sizes above the number of GPUs: ranks share them, and are checked and not timed."""

from __future__ import annotations

from typing import TypedDict

import pytest

from pkb_gym.engine.hardware import gpus


class Ranks(TypedDict):
    """Fields of `EvalConfig`."""

    world_size: int
    ranks_per_gpu: int


def ranks_on_gpus(world_size: int) -> Ranks:
    """That many ranks, on as many GPUs as there are; skips the test where there is none."""
    present = len(gpus.names())
    if present == 0:
        pytest.skip("needs an NVIDIA GPU")
    return Ranks(world_size=world_size, ranks_per_gpu=-(-world_size // present))
