"""What a trusted rank does before a block is timed, without a GPU."""

from __future__ import annotations

import weakref

import pytest
import torch

from pkb_gym.engine.reference import block_conditioner as module
from pkb_gym.engine.reference.block_conditioner import CpuConditioner, CudaConditioner, make_conditioner


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
    CudaConditioner([0]).reserve([100, 100, 0, 300])
    assert sorted(memory.given) == [100, 100, 300], "what is empty needs no memory"
    assert memory.most == 500
    assert memory.held == 0, "they are the allocator's again"


def test_what_is_at_hand_is_not_asked_for_again(memory: Memory) -> None:
    conditioner = CudaConditioner([0])
    conditioner.reserve([100, 100, 300])
    memory.given.clear()
    for sizes in ([100, 100, 300], [100], [], [300, 100]):
        conditioner.reserve(sizes)
    assert memory.given == []


def test_more_of_one_size_is_reserved_anew(memory: Memory) -> None:
    conditioner = CudaConditioner([0])
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


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Where this process would have moved, of processors that are the faster the lower their number."""
    moved: list[list[int]] = []
    monkeypatch.setattr(module, "find_fastest", lambda processors: [each for each in processors if each < 10])
    monkeypatch.setattr(module, "move_to", moved.append)
    return moved


@pytest.mark.parametrize(
    ("own", "ranks", "server"),
    [
        ([4, 5, 6, 7], [4, 5], 7),
        ([4, 5, 6, 11], [4, 5], 6),
        ([4, 5, 11, 12], [4, 5], 12),
        ([4, 5], [4, 5], 5),
        ([4], [4], 4),
    ],
)
def test_a_rank_settles_on_the_fastest_of_its_own_processors(
    moved: list[list[int]], own: list[int], ranks: list[int], server: int
) -> None:
    """The server of handovers and its sampler get one each to themselves, where there are enough."""
    conditioner = CudaConditioner(own)
    assert conditioner.choose_processors() == tuple(ranks)
    assert moved == [ranks] and conditioner.server_processor == server


def test_a_rank_stays_where_it_is_while_its_processors_are_among_the_fastest(
    moved: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To move every thread takes longer than to try the processors."""
    fastest: list[list[int]] = [[4, 5, 6], [6, 5, 4], [5, 6, 7], [7, 6, 5]]
    monkeypatch.setattr(module, "find_fastest", lambda _: fastest.pop(0))
    settled: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(module.os, "sched_setaffinity", lambda pid, own: settled.append((pid, set(own))))
    conditioner = CudaConditioner([4, 5, 6, 7])
    assert [conditioner.choose_processors() for _ in range(4)] == [(4, 5), (4, 5), (5, 6), (5, 6)]
    assert moved == [[4, 5], [5, 6]], "the thread that has tried them all comes back by itself"
    assert settled == [(0, {4, 5}), (0, {5, 6})] and conditioner.server_processor == 7


def test_a_baseline_finds_its_arguments_in_the_caches_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate's arguments have just been copied into its heap, too; GPUs flush theirs for both sides."""
    read: list[int] = []
    memory = torch.zeros(1000, dtype=torch.uint8)
    monkeypatch.setattr(torch.Tensor, "sum", lambda lines: read.append(lines.data_ptr()) or read.append(len(lines)))
    CudaConditioner([0]).bring_into_cache(memory)
    assert read == []
    CpuConditioner().bring_into_cache(memory)
    assert read == [memory.data_ptr(), -(-1000 // module.CACHE_LINE_BYTES)], "a byte of each line"


class Gpu:
    """One that another process keeps busy for a while; its kernels take as long as its clock says."""

    def __init__(self, busy_s: float) -> None:
        self.now_ns, self.busy_ns = 0, round(busy_s * 1e9)

    def run(self, cycles: int) -> None:
        self.now_ns += 30_000 if self.now_ns >= self.busy_ns else 2_000_000

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.mark.parametrize(("busy_s", "answer_us"), [(0.0, 30.0), (0.1, 30.0), (10.0, 2000.0)])
def test_a_busy_gpu_is_waited_for(busy_s: float, answer_us: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(busy_s)
    monkeypatch.setattr(module, "time", gpu)
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.run)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert CudaConditioner([0]).answer_us() == answer_us
    assert gpu.monotonic() < max(busy_s, module.BUSY_FOR_S) + 0.02
