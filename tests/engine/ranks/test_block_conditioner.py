"""What a trusted rank does before a block is timed, without a GPU."""

from __future__ import annotations

import weakref

import pytest
import torch

from pkb_gym.engine.ranks import block_conditioner as module
from pkb_gym.engine.ranks.block_conditioner import CpuConditioner, CudaConditioner, make_conditioner


class Memory:
    """What the driver gave, in bytes, and the most that was held at once."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self._held: weakref.WeakSet[Memory.Piece] = weakref.WeakSet()
        self.most = 0

    class Piece:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

    @property
    def held(self) -> int:
        return sum(piece.nbytes for piece in self._held)

    def empty(self, nbytes: int, *, dtype: torch.dtype, device: str) -> Memory.Piece:
        assert (dtype, device) == (torch.uint8, "cuda")
        piece = Memory.Piece(nbytes)
        self._held.add(piece)
        self.given.append(nbytes)
        self.most = max(self.most, self.held)
        return piece


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(torch, "empty", memory.empty)
    return memory


def test_results_of_all_calls_are_at_hand_at_once(memory: Memory) -> None:
    CudaConditioner([]).reserve([100, 100, 0, 300])
    assert sorted(memory.given) == [100, 100, 300], "what is empty needs no memory"
    assert memory.most == 500
    assert memory.held == 0, "they are the allocator's again"


def test_what_is_at_hand_is_not_asked_for_again(memory: Memory) -> None:
    conditioner = CudaConditioner([])
    conditioner.reserve([100, 100, 300])
    memory.given.clear()
    for sizes in ([100, 100, 300], [100], [], [300, 100]):
        conditioner.reserve(sizes)
    assert memory.given == []


def test_more_of_one_size_is_reserved_anew(memory: Memory) -> None:
    conditioner = CudaConditioner([])
    conditioner.reserve([100])
    memory.given.clear()
    conditioner.reserve([100, 100])
    assert memory.given == [100, 100]
    memory.given.clear()
    conditioner.reserve([100, 100])
    assert memory.given == []


def test_on_the_cpu_nothing_is_done(memory: Memory) -> None:
    conditioner = make_conditioner("cpu", [0])
    assert isinstance(conditioner, CpuConditioner) and isinstance(make_conditioner("cuda", [0]), CudaConditioner)
    conditioner.reserve([100])
    conditioner.flush_cache()
    assert conditioner.answer_us() is None and conditioner.choose_processors() is None and memory.given == []


def test_a_rank_settles_on_the_fastest_of_its_own_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(module, "move_to_fastest", lambda processors: tried.append(processors) or [4, 6])
    assert CudaConditioner([4, 5, 6]).choose_processors() == (4, 6)
    assert tried == [[4, 5, 6]]
