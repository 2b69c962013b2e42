"""A trainer's memory leaves the GPU and comes back, and it learns on as if nothing had been."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.training.processes.offload import GpuMemory

pytestmark = pytest.mark.gpu

WIDTH = 2048


def trained(offload: str | None, steps: int = 3) -> tuple[torch.Tensor, list[int]]:
    """The weights after some steps, and what torch held on the GPU while it was offloaded after each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    memory = None if offload is None else GpuMemory(model, offload)
    held = []
    for _ in range(steps):
        loss = model(torch.ones(8, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        if memory is not None:
            memory.optimizer = optimizer
            memory.offload()
            held.append(torch.cuda.memory_reserved())
            memory.restore()
    weights = model.weight.detach().cpu()
    torch.cuda.empty_cache()
    return weights, held


def test_it_learns_on_as_if_nothing_had_been():
    expected, _ = trained(None)
    before = torch.cuda.memory_reserved()
    size = 4 * WIDTH * WIDTH
    for offload, kept in (("cache", 4 * size), ("optimizer", 2 * size), ("all", 0)):
        weights, held = trained(offload)
        assert torch.equal(weights, expected)
        assert max(held) - before <= kept + (8 << 20)
