"""Captures of the baseline on registered memory, in which order; its GPU and NCCL are stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pkb_gym.engine.reference import baseline_blocks
from pkb_gym.engine.reference.baseline_blocks import BaselineBlocks
from pkb_gym.engine.reference.orders import Captured, CaptureGraphs

ORDER = CaptureGraphs(calls=2, dialect="native", registered=True)


class Gpu:
    """Logs what happens to memory and graphs of a rank, in order."""

    torch_device = "cpu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.is_alike = self.registers = True
        self.is_pool = False
        self.allocates: Callable[[], None] = lambda: None
        for name, stand_in in (("Stream", str), ("stream", contextlib.nullcontext), ("synchronize", lambda: None)):
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(baseline_blocks, "can_register", lambda: True)
        monkeypatch.setattr(baseline_blocks, "RegisteredMemory", lambda _: self)
        monkeypatch.setattr(baseline_blocks.graphs, "capture", self.capture)
        monkeypatch.setattr(baseline_blocks.graphs, "context_is_sound", lambda: True)

    handle = (0, 7)

    def release(self) -> None:
        self.log.append("release")

    @contextlib.contextmanager
    def allocating(self) -> Iterator[None]:
        self.is_pool = True
        try:
            self.allocates()
            yield
        finally:
            self.is_pool = False

    def is_laid_out_alike(self, failure: Exception | None) -> bool:
        self.log.append(f"layout{'' if failure is None else ' failed'}")
        return self.is_alike and failure is None

    def register(self) -> bool:
        self.log.append("register")
        return self.registers

    def close(self) -> None:
        self.log.append("close")

    def capture(self, call: Callable[[int], object], calls: int, stream: str, pool: object) -> tuple[list[str], None]:
        self.log.append(f"capture {calls} {pool}")
        for index in range(calls):
            call(index)
        return ["graph"] * calls, None

    def solution(self, tensor: torch.Tensor) -> torch.Tensor:
        self.log.append(f"call of {'a copy' if tensor.data_ptr() != TENSOR.data_ptr() else 'the argument'}")
        return tensor


TENSOR = torch.zeros(4)


def captured(gpu: Gpu) -> tuple[BaselineBlocks, Captured]:
    delivery = SimpleNamespace(deliver=lambda result: [result])
    block: Any = SimpleNamespace(
        solution=gpu.solution,
        arguments=[[TENSOR]] * 2,
        call=lambda _: gpu.solution(TENSOR),
        delivery=lambda *_: delivery,
    )
    stand_ins: Any = (None, gpu, None, None)
    blocks = BaselineBlocks(*stand_ins)
    return blocks, blocks.capture(block, ORDER)


def test_calls_of_copies_fill_the_pool_before_it_is_registered_and_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library allocates for a stream outlives the pool, and so comes first, elsewhere."""
    gpu = Gpu(monkeypatch)
    blocks, found = captured(gpu)
    assert found == Captured(captured=True, sound=True)
    copies = ["call of a copy"] * 2
    assert gpu.log == ["release", "call of the argument", *copies, "layout", "register", "capture 2 (0, 7)", *copies]
    blocks.forget()
    blocks.forget()
    assert gpu.log.count("close") == 1, "with the graphs its memory goes"


@pytest.mark.parametrize("obstacle", ["layout", "register", "memory"])
def test_what_cannot_be_registered_is_not_captured(monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    gpu = Gpu(monkeypatch)
    gpu.is_alike, gpu.registers = obstacle != "layout", obstacle != "register"

    def refuse() -> None:
        raise torch.OutOfMemoryError("no memory")

    if obstacle == "memory":
        gpu.allocates = refuse
    _, found = captured(gpu)
    assert found == Captured(captured=False, sound=True) and gpu.log[-1] == "close"
    assert not any(entry.startswith("capture") for entry in gpu.log)
    assert ("register" in gpu.log) is (obstacle == "register") and ("layout failed" in gpu.log) is (
        obstacle == "memory"
    )


def test_old_versions_register_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(baseline_blocks, "can_register", lambda: False)
    _, found = captured(gpu)
    assert found == Captured(captured=False, sound=True) and gpu.log == []
