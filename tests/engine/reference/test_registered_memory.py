"""Memory that NCCL may address on every rank: what is copied into it, and whether ranks have laid it out alike."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pkb_gym.engine.reference import registered_memory
from pkb_gym.engine.reference.registered_memory import RegisteredMemory, can_register, copies_of, layout_hash


def segment(address: int, *blocks: tuple[int, int]) -> dict[str, object]:
    parts = [{"address": address + offset, "size": size, "state": "inactive"} for offset, size in blocks]
    return {"address": address, "total_size": 4096, "blocks": parts}


HERE = [segment(1 << 20, (0, 1024), (1024, 3072)), segment(2 << 20, (0, 4096))]


@pytest.mark.parametrize(
    ("there", "is_alike"),
    [
        ([segment(9 << 20, (0, 4096)), segment(5 << 20, (0, 1024), (1024, 3072))], True),
        ([segment(1 << 20, (0, 2048), (2048, 2048)), HERE[1]], False),
        (HERE[:1], False),
    ],
)
def test_layouts_are_alike_wherever_their_segments_lie(there: list[dict[str, object]], is_alike: bool) -> None:
    """Of ragged shapes ranks would read another place of a peer's window than its tensor's."""
    assert (layout_hash(there) == layout_hash(HERE)) is is_alike and layout_hash([]) > 0


class Rank:
    """A rank's memory without GPUs, beside a peer that reports `peer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peer: int, obstacle: Exception | None = None) -> None:
        self.log: list[str] = []
        self.obstacle = obstacle
        pool = SimpleNamespace(snapshot=lambda: HERE)
        self.mem_allocator = None
        world = SimpleNamespace(pg_map={self: None, "gloo": None})
        monkeypatch.setattr(dist.distributed_c10d, "_world", world)
        monkeypatch.setattr(dist, "get_backend", lambda of=None: "gloo" if of == "gloo" else "nccl")
        monkeypatch.setattr(torch.cuda, "MemPool", lambda _: pool)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)
        self.peer = peer
        self.memory = RegisteredMemory(torch.device("cpu"))

    def _get_backend(self, _: torch.device) -> Rank:
        return self

    def all_reduce(self, found: torch.Tensor, op: object) -> None:
        torch.maximum(found, torch.tensor([self.peer, -self.peer]), out=found)

    def register_mem_pool(self, _: object, *, symm: bool) -> None:
        if self.obstacle is not None:
            raise self.obstacle
        self.log.append(f"register {symm}")

    def deregister_mem_pool(self, _: object) -> None:
        self.log.append("deregister")


@pytest.mark.parametrize(
    ("peer", "failure", "is_alike"),
    [
        (layout_hash(HERE), None, True),
        (layout_hash(HERE[:1]), None, False),
        (0, None, False),
        (layout_hash(HERE), torch.OutOfMemoryError("no memory"), False),
        (0, torch.OutOfMemoryError("no memory"), False),
    ],
)
def test_all_ranks_learn_whether_one_is_laid_out_otherwise_or_failed(
    monkeypatch: pytest.MonkeyPatch, peer: int, failure: Exception | None, is_alike: bool
) -> None:
    assert Rank(monkeypatch, peer).memory.is_laid_out_alike(failure) is is_alike


def test_what_was_registered_is_deregistered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, 1)
    assert rank.memory.register()
    rank.memory.close()
    rank.memory.close()
    assert rank.log == ["register True", "deregister"]
    refused = Rank(monkeypatch, 1, RuntimeError("NCCL error: invalid usage"))
    assert not refused.memory.register()
    refused.memory.close()
    assert refused.log == []
    beside = Rank(monkeypatch, 0)
    assert not beside.memory.register(), "another rank was refused"
    beside.memory.close()
    assert beside.log == ["register True", "deregister"]


@pytest.mark.parametrize(
    ("backend", "nccl", "version", "can"),
    [
        ("nccl", (2, 28, 9), "2.11.0+cu130", True),
        ("nccl", (2, 26, 2), "2.11.0", False),
        ("nccl", (2, 28, 9), "2.8.1", False),
        ("gloo", (2, 28, 9), "2.11.0", False),
    ],
)
def test_old_versions_and_ranks_that_share_gpus_have_none(
    monkeypatch: pytest.MonkeyPatch, backend: str, nccl: tuple[int, ...], version: str, can: bool
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: nccl)
    torch_version: Callable[[str], str] = torch.torch_version.TorchVersion
    monkeypatch.setattr(registered_memory.torch, "__version__", torch_version(version))
    assert can_register() is can


def test_shared_arguments_are_copied_once() -> None:
    weight, inputs = torch.ones(4), [torch.zeros(2), torch.zeros(2)]
    copied = copies_of([[weight, [inputs[0], None], 3], [weight, [inputs[1], None], 3]], torch.clone)
    (one, (first, nothing), number), (other, (second, _), _) = copied
    assert one is other and one is not weight and torch.equal(one, weight)
    assert first is not second and nothing is None and number == 3
    assert len({tensor.data_ptr() for tensor in (weight, one, *inputs, first, second)}) == 6
