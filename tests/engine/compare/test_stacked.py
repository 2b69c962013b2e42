"""Tensors at equal distances as one, in a heap of the test's own."""

from __future__ import annotations

from math import prod

import pytest
import torch

from pkb_gym.engine.compare.stacked import byte_slot, stacked, word_slot
from pkb_gym.engine.ranks.heaps import sealed_memory
from pkb_gym.engine.rankside.arguments import TensorSlot
from pkb_gym.engine.rankside.heap import Heap

SEGMENT_BYTES = 1 << 16


@pytest.fixture
def heap() -> Heap:
    return Heap(sealed_memory("test", 2 * SEGMENT_BYTES), SEGMENT_BYTES, 2, 1)


def slot(offset: int, *shape: int, dtype: str = "float32") -> TensorSlot:
    return TensorSlot(offset, shape, dtype, prod(shape))


def test_each_is_the_tensor_at_its_place(heap: Heap) -> None:
    for call in range(3):
        heap.tensor(slot(256 + 1024 * call, 5, 7)).copy_(torch.arange(35.0).view(5, 7) + 100 * call)
    found = stacked(heap, slot(256, 5, 7), 3, 1024)
    assert found.shape == (3, 5, 7)
    for call in range(3):
        assert torch.equal(found[call], heap.tensor(slot(256 + 1024 * call, 5, 7)))


def test_writing_reaches_the_heap_and_nothing_between(heap: Heap) -> None:
    stacked(heap, slot(0, 4, dtype="int64"), 3, 256).fill_(-1)
    words = heap.tensor(slot(0, 96, dtype="int64")).view(3, 32)
    assert (words[:, :4] == -1).all() and not words[:, 4:].any()


def test_another_ranks_segment(heap: Heap) -> None:
    heap.tensor(slot(512, 2), 0).fill_(3.0)
    assert stacked(heap, slot(0, 2), 2, 512, 0).tolist() == [[0, 0], [3, 3]]
    assert not stacked(heap, slot(0, 2), 2, 512).any()


def test_the_last_one_may_end_the_segment(heap: Heap) -> None:
    stacked(heap, slot(SEGMENT_BYTES - 4096 - 8, 2), 2, 4096).fill_(1.0)
    assert heap.tensor(slot(SEGMENT_BYTES - 8, 2)).tolist() == [1, 1]


@pytest.mark.parametrize("stride", [0, 256])
def test_empty_ones_can_be_read_copied_and_filled(heap: Heap, stride: int) -> None:
    found = stacked(heap, slot(0, 0, 3), 4, stride)
    assert found.shape == (4, 0, 3)
    found.copy_(stacked(heap, slot(0, 0, 3), 4, stride)).fill_(1)


@pytest.mark.parametrize(
    ("offset", "nbytes", "count", "dtype"),
    [(256, 64, 8, "int64"), (256, 0, 0, "int64"), (256, 65, 65, "uint8"), (4, 64, 64, "uint8")],
)
def test_bytes_are_whole_words_where_that_can_be(offset: int, nbytes: int, count: int, dtype: str) -> None:
    assert word_slot(offset, nbytes) == slot(offset, count, dtype=dtype)
    assert byte_slot(offset, nbytes) == slot(offset, nbytes, dtype="uint8")
