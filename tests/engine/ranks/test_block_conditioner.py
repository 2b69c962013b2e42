"""What a trusted rank does before a block is timed, without a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from pkb_gym.engine.ranks import block_conditioner as module
from pkb_gym.engine.ranks.block_conditioner import CpuQuiet, CudaQuiet, make_quiet
from pkb_gym.engine.ranks.reference import Reference
from pkb_gym.engine.ranks.reference_gang import ReferenceGang


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
    CudaQuiet([]).reserve([100, 100, 0, 300])
    assert sorted(memory.given) == [100, 100, 300], "what is empty needs no memory"
    assert memory.most == 500
    assert memory.held == 0, "they are the allocator's again"


def test_what_is_at_hand_is_not_asked_for_again(memory: Memory) -> None:
    quiet = CudaQuiet([])
    quiet.reserve([100, 100, 300])
    memory.given.clear()
    for sizes in ([100, 100, 300], [100], [], [300, 100]):
        quiet.reserve(sizes)
    assert memory.given == []


def test_more_of_one_size_is_reserved_anew(memory: Memory) -> None:
    quiet = CudaQuiet([])
    quiet.reserve([100])
    memory.given.clear()
    quiet.reserve([100, 100])
    assert memory.given == [100, 100]
    memory.given.clear()
    quiet.reserve([100, 100])
    assert memory.given == []


def test_on_the_cpu_nothing_is_done(memory: Memory) -> None:
    quiet = make_quiet("cpu", [0])
    assert isinstance(quiet, CpuQuiet) and isinstance(make_quiet("cuda", [0]), CudaQuiet)
    quiet.reserve([100])
    quiet.flush_cache()
    assert quiet.answer_us() is None and quiet.settle() is None and memory.given == []


def test_a_rank_settles_on_quick_ones_of_its_own_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(module, "move_to_quick", lambda processors: tried.append(processors) or [4, 6])
    assert CudaQuiet([4, 5, 6]).settle() == [4, 6]
    assert tried == [[4, 5, 6]]


class Recorder:
    """Stands for whatever a reference rank has at hand; keeps what is asked of it, in order."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def __getattr__(self, name: str) -> Callable[..., object]:
        def ask(*args: object) -> object:
            self._asked.append(" ".join([name, *(str(next(iter(arg))) for arg in args if isinstance(arg, dict))]))
            return [3] if name == "settle" else 20.0

        return ask


def test_processors_are_tried_last_of_all_before_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    rank = Reference.__new__(Reference)
    rank._quiet = rank._device = rank._wire = Recorder(asked)  # type: ignore[assignment]
    monkeypatch.setattr(torch.distributed, "barrier", lambda: asked.append("barrier"))
    assert rank._gated(lambda: asked.append("block")) == {"finished": True, "idle_us": 20.0}
    before = ["barrier", "answer_us", "flush_cache", "synchronize", "settle"]
    assert asked == [*before, "send armed", "receive", "block", "synchronize", "send done"]


def test_staging_says_where_the_candidates_ranks_should_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    rank = Reference.__new__(Reference)
    rank._quiet = rank._device = rank._mine = rank._theirs = Recorder(asked)  # type: ignore[assignment]
    rank._plan = SimpleNamespace(runs=[])  # type: ignore[assignment]
    assert rank._stage() == {"staged": True, "idle_us": 20.0, "processors": [3]}
    assert asked[-1] == "settle"
    gang = ReferenceGang.__new__(ReferenceGang)
    monkeypatch.setattr(gang, "_ask", lambda *_: [rank._stage(), rank._stage()])
    gang.device = "cuda"
    assert gang.stage() == [[3], [3]] and gang.idle_us == 20.0
    gang.device = "cpu"
    assert gang.stage() is None
