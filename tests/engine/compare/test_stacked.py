"""The same tensor of several sets as one, in a heap of the test's own."""

from __future__ import annotations

from math import prod

import pytest
import torch

from pkb_gym.engine.compare.stacked import byte_slot, stacked, word_slot
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.wire.arguments import TensorSlot

SEGMENT_BYTES = 1 << 16


@pytest.fixture
def heap() -> Heap:
    return Heap(sealed_memory("test", 2 * SEGMENT_BYTES), SEGMENT_BYTES, 2, 1)


def slot(offset: int, *shape: int, dtype: str = "float32") -> TensorSlot:
    return TensorSlot(offset, shape, dtype, prod(shape))


DISTANCES = (0, 5 * 1024, 1024)
"""Sets lie in any order, with gaps."""


def test_each_is_the_tensor_at_its_place(heap: Heap) -> None:
    for call, distance in enumerate(DISTANCES):
        heap.tensor(slot(8192 + distance, 5, 7)).copy_(torch.arange(35.0).view(5, 7) + 100 * call)
    found = stacked(heap, slot(8192, 5, 7), DISTANCES)
    assert found.shape == (3, 5, 7)
    for call, distance in enumerate(DISTANCES):
        assert torch.equal(found[call], heap.tensor(slot(8192 + distance, 5, 7)))


def test_sets_may_lie_before_the_first(heap: Heap) -> None:
    heap.tensor(slot(256, 2)).fill_(3.0)
    assert stacked(heap, slot(512, 2), (0, -256)).tolist() == [[0, 0], [3, 3]]


def test_one_alone_is_no_copy_and_several_are(heap: Heap) -> None:
    stacked(heap, slot(0, 4, dtype="int64"), (0,)).fill_(-1)
    stacked(heap, slot(256, 4, dtype="int64"), (0, 256)).fill_(-1)
    words = heap.tensor(slot(0, 96, dtype="int64")).view(3, 32)
    assert (words[0, :4] == -1).all() and not words[:, 4:].any() and not words[1:].any()


def test_another_ranks_segment(heap: Heap) -> None:
    heap.tensor(slot(512, 2), 0).fill_(3.0)
    assert stacked(heap, slot(0, 2), (0, 512), 0).tolist() == [[0, 0], [3, 3]]
    assert not stacked(heap, slot(0, 2), (0, 512)).any()


def test_the_last_one_may_end_the_segment(heap: Heap) -> None:
    heap.tensor(slot(SEGMENT_BYTES - 256, 64)).fill_(1.0)
    found = stacked(heap, slot(SEGMENT_BYTES - 4096 - 256, 64), (0, 4096))
    assert not found[0].any() and found[1].tolist() == [1.0] * 64


def test_empty_ones_can_be_read_and_copied(heap: Heap) -> None:
    found = stacked(heap, slot(0, 0, 3), (0, 256, 1024, 512))
    assert found.shape == (4, 0, 3)
    assert found.clone().shape == found.shape


@pytest.mark.parametrize(
    ("offset", "nbytes", "count", "dtype"),
    [(256, 64, 8, "int64"), (256, 0, 0, "int64"), (256, 65, 65, "uint8"), (4, 64, 64, "uint8")],
)
def test_bytes_are_whole_words_where_that_can_be(offset: int, nbytes: int, count: int, dtype: str) -> None:
    assert word_slot(offset, nbytes) == slot(offset, count, dtype=dtype)
    assert byte_slot(offset, nbytes) == slot(offset, nbytes, dtype="uint8")
