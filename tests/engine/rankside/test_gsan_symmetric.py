"""Handles of GSan's symmetric memory in the words of torch's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed._symmetric_memory as torch_symmetric

from pkb_gym.engine.rankside.failures import CandidateError
from pkb_gym.engine.rankside.gsan_symmetric import SymmetricMemory

WORLD = SimpleNamespace(group_name="world")


class Handle:
    """GSan's, of the second of two ranks; the first one's memory is a copy."""

    rank, world_size = 1, 2

    def __init__(self, tensor: torch.Tensor) -> None:
        own = tensor.view(-1).view(torch.uint8)
        self.buffers = [own.clone(), own]
        self.barriers = 0

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        return self.buffers[rank].view(dtype)[storage_offset:][: torch.Size(sizes).numel()].view(sizes)

    def barrier(self) -> None:
        self.barriers += 1


class Gsan:
    """The module `triton.experimental.gsan.symmetric_memory`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.handles: list[Handle] = []
        self.next: torch.Tensor | None = None

    def empty(self, *size: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
        self.log.append("empty")
        tensor, self.next = self.next, None
        return torch.full(size, 7, dtype=dtype, device=device) if tensor is None else tensor

    def rendezvous(self, tensor: torch.Tensor, group: Any) -> Handle:
        self.log.append("rendezvous")
        self.handles.append(Handle(tensor))
        return self.handles[-1]


@pytest.fixture
def gsan() -> Gsan:
    return Gsan()


@pytest.fixture
def memory(gsan: Gsan) -> SymmetricMemory:
    device: Any = SimpleNamespace(torch_device="cpu", synchronize=lambda: gsan.log.append("synchronize"))
    return SymmetricMemory(gsan, device)


def table(address: int) -> list[int]:
    return list((ctypes.c_uint64 * Handle.world_size).from_address(address))


def test_a_handle_has_the_members_of_torchs(gsan: Gsan, memory: SymmetricMemory) -> None:
    tensor = memory.empty(3, 4, dtype=torch.float32, device="cpu")
    handle = memory.rendezvous(tensor, WORLD)
    buffer, pads = gsan.handles
    assert (handle.rank, handle.world_size, handle.buffer_size, handle.multicast_ptr) == (1, 2, 48, 0)
    assert handle.buffer_ptrs == [one.data_ptr() for one in buffer.buffers] == table(handle.buffer_ptrs_dev)
    assert handle.signal_pad_ptrs == [one.data_ptr() for one in pads.buffers] == table(handle.signal_pad_ptrs_dev)
    assert handle.get_buffer(0, (2, 2), torch.float32, 4).data_ptr() == handle.buffer_ptrs[0] + 16
    assert handle.get_remote_tensor(1, (3, 4), torch.float32).data_ptr() == tensor.data_ptr()
    assert handle.get_signal_pad(0, (2,), torch.int64, 1).data_ptr() == handle.signal_pad_ptrs[0] + 8
    assert handle.get_signal_pad(1).nbytes == handle.signal_pad_size == torch_symmetric.get_signal_pad_size()
    handle.barrier(channel=3)
    assert (buffer.barriers, pads.barriers) == (1, 0)


def test_a_signal_pad_is_zero_before_peers_can_reach_it(gsan: Gsan, memory: SymmetricMemory) -> None:
    handle = memory.rendezvous(memory.empty(4, dtype=torch.int32, device="cpu"), "world")
    assert not handle.get_signal_pad(1).any()
    assert gsan.log[-3:] == ["empty", "synchronize", "rendezvous"]


def test_a_tensor_has_one_handle_until_another_lies_at_its_place(gsan: Gsan, memory: SymmetricMemory) -> None:
    tensor = memory.empty(4, dtype=torch.int32, device="cpu")
    handle = memory.rendezvous(tensor, WORLD)
    assert memory.rendezvous(tensor, "world") is handle and memory.rendezvous(tensor, "half") is not handle
    gsan.next = tensor
    assert memory.rendezvous(memory.empty(4, dtype=torch.int32, device="cpu"), WORLD) is not handle


def test_what_gsan_lacks_is_named(memory: SymmetricMemory) -> None:
    handle = memory.rendezvous(memory.empty(4, dtype=torch.int32, device="cpu"), WORLD)
    with pytest.raises(CandidateError, match="GSan's symmetric memory has no put_signal"):
        handle.put_signal(1)
    assert not hasattr(handle, "no_such_member")


def test_a_workspace_grows(memory: SymmetricMemory) -> None:
    small = memory.workspace("world", 16)
    assert memory.workspace("world", 8) is small and memory.workspace("half", 8) is not small
    assert memory.workspace("world", 32).buffer_size == 32


def test_it_stands_in_the_place_of_torchs(memory: SymmetricMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty", "rendezvous", "get_symm_mem_workspace"):
        monkeypatch.setattr(torch_symmetric, name, None)
    memory.install()
    handle = torch_symmetric.rendezvous(torch_symmetric.empty(4, dtype=torch.int32, device="cpu"), "world")
    assert handle.buffer_size == 16 and torch_symmetric.get_symm_mem_workspace("world", 64).buffer_size == 64
