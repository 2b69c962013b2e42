"""The symmetric heap on GPUs as a rank sees it, with main memory in place of device memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import prod
from types import SimpleNamespace

import pytest
import torch

from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside import cuda_heap
from pkb_gym.engine.rankside.cuda_heap import CudaHeap
from pkb_gym.engine.rankside.dlpack import HeapTensor
from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import TensorSlot

SEGMENT_BYTES, WORLD_SIZE, RANK = abi.SCRATCH_OFFSET + 8192, 3, 1


class Mapping:
    """Segments side by side in main memory."""

    log: list[str]

    def __init__(self, fds: Sequence[int], segment_bytes: int, device: int) -> None:
        self.log.append(f"map {len(fds)} segments of {segment_bytes} on {device}")
        self._memory = torch.zeros(len(fds) * segment_bytes + 512, dtype=torch.uint8)
        self.base = -(-self._memory.data_ptr() // 512) * 512

    def close(self) -> None:
        self.log.append("unmap")


class Runtime:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self._log.append(f"register {nbytes} with {flags}")
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self._log.append("unregister")
        return 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A heap, the descriptors that it was given, and what it did."""
    log: list[str] = []
    monkeypatch.setattr(Mapping, "log", log, raising=False)
    monkeypatch.setattr(cuda_heap, "Mapping", Mapping)
    monkeypatch.setattr(cuda_heap, "HeapTensor", lambda *given: HeapTensor(*given[:3]))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(log))
    monkeypatch.setattr(torch.cuda, "check_error", lambda status: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    control = sealed_memory("control", abi.HOST_CONTROL_BYTES * WORLD_SIZE)
    seen = os.dup(control)
    fds = [control, *(os.memfd_create("segment") for _ in range(WORLD_SIZE))]
    heap = CudaHeap(control, fds[1:], SEGMENT_BYTES, RANK)
    yield SimpleNamespace(heap=heap, fds=fds, control=seen, log=log)
    os.close(seen)


def slot(offset: int, *shape: int, dtype: str = "float32") -> TensorSlot:
    return TensorSlot(offset, shape, dtype, prod(shape))


def test_it_maps_all_segments_and_registers_the_control_pages(made: SimpleNamespace) -> None:
    assert made.log == [
        f"register {WORLD_SIZE * abi.HOST_CONTROL_BYTES} with 2",
        f"map {WORLD_SIZE} segments of {SEGMENT_BYTES} on 1",
    ]
    assert made.heap.cuda_device == 1
    for fd in made.fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_each_rank_has_its_segment(made: SimpleNamespace) -> None:
    heap = made.heap
    for rank in range(WORLD_SIZE):
        heap.tensor(slot(abi.SCRATCH_OFFSET, 2, 3), rank).fill_(rank + 1)
        assert heap.tensor(slot(abi.SCRATCH_OFFSET, 2, 3), rank).data_ptr() == heap.segment(rank) + abi.SCRATCH_OFFSET
    values = [heap.tensor(slot(abi.SCRATCH_OFFSET, 6), rank).tolist() for rank in range(WORLD_SIZE)]
    assert values == [[1.0] * 6, [2.0] * 6, [3.0] * 6]
    assert heap.tensor(slot(abi.SCRATCH_OFFSET, 6)).tolist() == [2.0] * 6, "this rank's by default"


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "complex128", "bool", "float8_e4m3fn"])
def test_a_tensor_has_the_shape_and_dtype_of_its_slot(made: SimpleNamespace, dtype: str) -> None:
    tensor = made.heap.tensor(slot(abi.SCRATCH_OFFSET + 256, 3, 5, dtype=dtype))
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 5), getattr(torch, dtype))
    assert tensor.is_contiguous()
    scalar = made.heap.tensor(slot(abi.SCRATCH_OFFSET, dtype=dtype))
    assert scalar.dim() == 0


def test_zeroing_clears_this_ranks_segment_alone(made: SimpleNamespace) -> None:
    heap = made.heap
    for rank in range(WORLD_SIZE):
        heap.tensor(slot(0, SEGMENT_BYTES, dtype="uint8"), rank).fill_(7)
    heap.zero()
    sums = [int(heap.tensor(slot(0, SEGMENT_BYTES, dtype="uint8"), rank).sum()) for rank in range(WORLD_SIZE)]
    assert sums == [7 * SEGMENT_BYTES, 0, 7 * SEGMENT_BYTES]


def test_counters_are_read_and_cleared_in_device_memory(made: SimpleNamespace) -> None:
    heap = made.heap
    assert heap.stats_address == heap.segment(RANK) + abi.STATS_OFFSET
    numbers = torch.arange(1, 1 + len(abi.STATS_FIELDS))
    heap.tensor(slot(abi.STATS_OFFSET, len(numbers), dtype="int64")).copy_(numbers)
    stats = heap.stats()
    assert [getattr(stats, name) for name in abi.STATS_FIELDS] == numbers.tolist()
    heap.clear_stats()
    assert stats.wait_ns == 1, "a copy"
    assert heap.stats().wait_ns == heap.stats().waits == 0


def test_where_ranks_stand_is_seen_through_the_control_pages(made: SimpleNamespace) -> None:
    heap = made.heap
    heap.place(2).call = 0x1122
    begin = 2 * abi.HOST_CONTROL_BYTES + abi.PLACE_OFFSET
    assert abi.Place.from_buffer_copy(os.pread(made.control, 64, begin)).call == 0x1122
    heap.place(RANK).call = 0x3344
    assert abi.Place.from_address(heap.control + abi.PLACE_OFFSET).call == 0x3344, "its own page, for the driver"


def test_it_is_unmapped_when_the_device_is_idle(made: SimpleNamespace) -> None:
    made.log.clear()
    made.heap.close()
    assert made.log == ["synchronize", "unmap", "unregister"]
