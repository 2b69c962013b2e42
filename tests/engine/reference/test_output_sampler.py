"""The compiled sampler of outputs, with main memory for a GPU's and a function of the test for its copy engine."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pkb_gym.engine.compare.layout import BlockPlan, Workload, placed_results
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers, build_sampler
from pkb_gym.engine.gangs.handover_ends import HandoverLibraries
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside.devices import CpuDevice
from pkb_gym.engine.rankside.handover import WaitingHandover
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.candidate_block import CandidateHandovers, Sampling, ServedBlock, stage_inputs
from pkb_gym.engine.reference.handover_script import write_script
from pkb_gym.engine.reference.handover_server import HandoverLibrary
from pkb_gym.engine.reference.orders import LateOutput
from pkb_gym.engine.reference.output_sampler import (
    CALL_BYTES,
    FEW_CALLS,
    MAX_CALLS,
    MAX_OUTPUTS,
    EngineFunctions,
    GpuCopyEngine,
    OutputParts,
    OutputSampler,
    draw_parts,
)
from pkb_gym.problems.catalogue import find_problem
from tests.waiting import PATIENCE_S

PROBLEM = find_problem("AllReduce")
SCRATCH_BYTES = 8192
FIRST_SEQUENCE = 7
LINE = 64


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> OutputSampler:
    # Not by its descriptor: the loader knows libraries by their paths, and numbers of descriptors come again.
    library = tmp_path_factory.mktemp("sampler") / "sampler.so"
    library.write_bytes(build_sampler(CompileCache.in_folder(None)))
    return OutputSampler(str(library))


@pytest.fixture(scope="module")
def handovers() -> Iterator[HandoverLibraries]:
    built = build_handovers("cpu", CompileCache.in_folder(None))
    yield built
    built.close()


class MemoryHeap(Heap):
    """A segment in main memory, with a request word."""

    def __init__(self, segment_bytes: int = 4096) -> None:
        super().__init__(sealed_memory("test", segment_bytes), segment_bytes, 1, 0)
        self.word = ctypes.c_uint64(FIRST_SEQUENCE - 1)

    @property
    def mailbox(self) -> int:
        return ctypes.addressof(self.word)


class MemoryEngine:
    """Copies by memmove; counts copies, and can fail or be held up.

    Attributes:
        copied: Distance of each copied part from `base`, in order.
        began: Event that is set when a copy has begun.
        may_copy: Event that copies wait for.
    """

    def __init__(self, base: int = 0, *, fails: bool = False) -> None:
        self.memory = np.zeros(MAX_CALLS * CALL_BYTES, np.uint8)
        self.copied: list[int] = []
        self.began, self.may_copy = threading.Event(), threading.Event()
        self.may_copy.set()
        self._base, self._fails, self._came = base, fails, threading.Condition()
        unary, copying = (
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
        )
        self._callbacks = unary(lambda _: 0), copying(self._copy), unary(lambda _: 0)
        addresses = [ctypes.cast(callback, ctypes.c_void_p) for callback in self._callbacks]
        self.functions = EngineFunctions(*addresses, None, None)

    def _copy(self, to: int, source: int, nbytes: int, _: object) -> int:
        self.began.set()
        fails = not self.may_copy.wait(PATIENCE_S) or self._fails
        if not fails:
            ctypes.memmove(to, source, nbytes)
        with self._came:
            self.copied.append(source - self._base)
            self._came.notify_all()
        return 700 if fails else 0

    def wait_for(self, copies: int) -> None:
        """Until so many have ended."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.copied) >= copies, PATIENCE_S)


def lines(calls: Sequence[int]) -> OutputParts:
    """For each call a line of its own."""
    count = len(calls)
    offsets = np.array([LINE * call for call in calls], np.uint64)
    return OutputParts(np.array(calls), offsets, np.full(count, LINE, np.uint64), ("out",) * count)


def write(heap: MemoryHeap, call: int) -> None:
    heap.bytes()[LINE * call : LINE * (call + 1)] = call + 1


def test_outputs_that_are_there_at_the_request_are_not_late(sampler: OutputSampler) -> None:
    heap = MemoryHeap()
    engine = MemoryEngine(heap.segment(0))
    samples = sampler.start(lines(range(5)), engine, heap, FIRST_SEQUENCE)
    for call in range(5):
        write(heap, call)
        heap.word.value = FIRST_SEQUENCE + call + 1
        engine.wait_for(call + 1)
    assert samples.finish() == ()
    assert engine.copied == [LINE * call for call in range(5)]


def test_an_output_that_comes_after_the_request_is_late(sampler: OutputSampler) -> None:
    heap = MemoryHeap()
    engine = MemoryEngine()
    samples = sampler.start(lines([0, 1, 2]), engine, heap, FIRST_SEQUENCE)
    for call in range(3):
        if call != 1:
            write(heap, call)
        heap.word.value = FIRST_SEQUENCE + call + 1
        engine.wait_for(call + 1)
    write(heap, 1)
    assert samples.finish() == (LateOutput(1, "out"),)


def test_a_call_is_not_copied_before_it_has_been_left(sampler: OutputSampler) -> None:
    """Its arrival is the request before its own."""
    heap = MemoryHeap()
    engine = MemoryEngine(heap.segment(0))
    samples = sampler.start(lines([1, 3]), engine, heap, FIRST_SEQUENCE)
    heap.word.value = FIRST_SEQUENCE + 3
    engine.wait_for(1)
    assert samples.finish() == ()
    assert engine.copied == [LINE], "call 3 had arrived, but not been left"


def test_calls_that_were_left_long_ago_are_passed_over(sampler: OutputSampler) -> None:
    heap = MemoryHeap()
    engine = MemoryEngine(heap.segment(0))
    engine.may_copy.clear()
    samples = sampler.start(lines(range(6)), engine, heap, FIRST_SEQUENCE)
    heap.word.value = FIRST_SEQUENCE + 1
    assert engine.began.wait(PATIENCE_S)
    heap.word.value = FIRST_SEQUENCE + 5
    engine.may_copy.set()
    engine.wait_for(2)
    assert samples.finish() == ()
    assert engine.copied == [0, LINE * 4]


def test_a_candidate_that_asks_for_nothing_does_not_keep_it(sampler: OutputSampler) -> None:
    heap, engine = MemoryHeap(), MemoryEngine()
    threads = len(os.listdir("/proc/self/task"))
    samples = sampler.start(lines([40]), engine, heap, FIRST_SEQUENCE)  # far away: it sleeps
    assert samples.finish() == ()
    assert engine.copied == [] and len(os.listdir("/proc/self/task")) == threads


def test_a_copy_engine_that_fails_is_no_evidence(sampler: OutputSampler) -> None:
    heap, engine = MemoryHeap(), MemoryEngine(fails=True)
    samples = sampler.start(lines([0]), engine, heap, FIRST_SEQUENCE)
    heap.word.value = FIRST_SEQUENCE + 1
    engine.wait_for(1)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        samples.finish()


def test_its_thread_runs_where_it_may_and_its_maker_where_it_was(sampler: OutputSampler) -> None:
    before = os.sched_getaffinity(0)
    one = max(before)
    tasks = set(os.listdir("/proc/self/task"))
    samples = sampler.start(lines([0]), MemoryEngine(), MemoryHeap(), FIRST_SEQUENCE, [one])
    (thread,) = set(os.listdir("/proc/self/task")) - tasks
    assert os.sched_getaffinity(int(thread)) == {one} and os.sched_getaffinity(0) == before
    samples.finish()


DRIVER = """
#include <cstring>
extern "C" {
unsigned long long last_context, last_stream;
int cuCtxGetCurrent(void** context) { *context = (void*)0x1234567890; return 0; }
int cuCtxSetCurrent(void* context) { last_context = (unsigned long long)context; return 0; }
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t nbytes, void* stream) {
  last_stream = (unsigned long long)stream;
  std::memcpy(to, (void*)from, nbytes);
  return 0;
}
int cuStreamSynchronize(void* stream) { return stream == (void*)last_stream ? 0 : 400; }
}
"""


def test_the_driver_is_called_with_context_and_stream_of_the_gpu(
    sampler: OutputSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that has main memory for a GPU's."""
    (tmp_path / "driver.cpp").write_text(DRIVER, encoding="utf-8")
    library = tmp_path / "driver.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "driver.cpp"), "-o", str(library)], check=True)
    load, empty = ctypes.CDLL, torch.empty
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(library) if name == "libcuda.so.1" else name))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=0x9876543210))
    monkeypatch.setattr(torch, "empty", lambda nbytes, *, dtype, pin_memory: empty(nbytes, dtype=dtype))
    heap, engine = MemoryHeap(), GpuCopyEngine()
    write(heap, 0)
    samples = sampler.start(lines([0]), engine, heap, FIRST_SEQUENCE)
    heap.word.value = FIRST_SEQUENCE + 1
    assert samples.finish() == () and set(engine.memory[:LINE]) == {1}
    driver = load(str(library))
    assert ctypes.c_uint64.in_dll(driver, "last_context").value == 0x1234567890
    assert ctypes.c_uint64.in_dll(driver, "last_stream").value == 0x9876543210


# ---- draws -----------------------------------------------------------------------------------------------------------


def planned(problem: str, calls: int, size: str = "tiny") -> tuple[Workload, BlockPlan]:
    workload = Workload(find_problem(problem), size, 2, "float32", "robust", b"key", 0, 0)
    return workload, workload.plan(range(calls), True, SCRATCH_BYTES)


@pytest.mark.parametrize("problem", ["AllReduce", "DDP", "AllToAll"])
@pytest.mark.parametrize("size", ["tiny", "published"])
def test_parts_lie_in_outputs_of_their_call(problem: str, size: str) -> None:
    workload, plan = planned(problem, 4, size)
    parts = draw_parts(workload.problem, plan, 1, seed=3, is_disturbed=True)
    assert sorted(set(parts.calls.tolist())) == [0, 1, 2, 3] and (np.diff(parts.calls) >= 0).all()
    for call, offset, nbytes, name in zip(parts.calls, parts.offsets, parts.nbytes, parts.outputs, strict=True):
        (leaf,) = [leaf for _, leaf in placed_results(workload.problem, plan.sets[call], 1) if leaf.leaf.name == name]
        assert nbytes > 0
        assert leaf.offset <= offset and offset + nbytes <= leaf.offset + leaf.leaf.capacity_bytes
    for call in range(4):
        of_call = parts.calls == call
        assert of_call.sum() <= MAX_OUTPUTS and parts.nbytes[of_call].sum() <= CALL_BYTES


def test_blocks_that_count_have_few_samples_which_the_seed_draws() -> None:
    workload, plan = planned("AllReduce", 100)
    draws = [draw_parts(workload.problem, plan, 0, seed, is_disturbed=False).calls.tolist() for seed in (1, 1, 2, 3, 4)]
    assert [len(calls) for calls in draws] == [FEW_CALLS] * 5
    assert draws[0] == draws[1] and len({tuple(calls) for calls in draws}) == 4


# ---- a block ---------------------------------------------------------------------------------------------------------


def run_block(
    sampler: OutputSampler,
    libraries: HandoverLibraries,
    calls: int,
    request: Callable[[MemoryHeap, int, Callable[[], None]], None],
) -> tuple[LateOutput, ...]:
    """A served block whose rank writes its outputs and asks for its next call as `request` has it."""
    workload = Workload(PROBLEM, "tiny", 1, "float32", "robust", b"key", 0, 0)
    plan = workload.plan(range(calls), True, SCRATCH_BYTES)
    mine, theirs = MemoryHeap(plan.end), MemoryHeap(plan.end)
    theirs.word.value = 0
    bound = BoundBlock(PROBLEM, plan, 0, mine, [], [], lambda: None, 5)
    stage_inputs(plan, mine, theirs)
    engine = MemoryEngine()
    parts = draw_parts(PROBLEM, plan, 0, bound.seed, is_disturbed=True)
    script = write_script(PROBLEM, plan, 0, mine, bound.seed)
    block = ServedBlock(bound, script, theirs, sampling=Sampling(sampler, engine, parts))
    trusted = CandidateHandovers(HandoverLibrary(f"/proc/self/fd/{libraries.reference_fds[0]}"))
    trusted.take([os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2)])
    device = CpuDevice(0, 1, 1)
    handover = WaitingHandover(device, *trusted.fds)
    block.serve(trusted, -1)
    theirs.word.value = 1
    handover.cross()
    for call in range(calls):
        ((_, leaf),) = placed_results(PROBLEM, plan.sets[call], 0)

        def work(leaf=leaf, call=call) -> None:  # type: ignore[no-untyped-def]
            theirs.bytes()[leaf.offset : leaf.offset + leaf.leaf.capacity_bytes] = call + 1

        request(theirs, call, work)
        engine.wait_for(call + 1)
        if call == calls - 1:
            work()  # what is late comes at last
        handover.cross()
    ended = block.end()
    trusted.close()
    assert ended.complete and ended.late == (), "receipts show nothing"
    return ended.early


def test_a_block_reports_what_came_between_request_and_handover(
    sampler: OutputSampler, handovers: HandoverLibraries
) -> None:
    def ask_after_work(heap: MemoryHeap, call: int, work: Callable[[], None]) -> None:
        work()
        heap.word.value = call + 2

    def ask_before_work(heap: MemoryHeap, call: int, work: Callable[[], None]) -> None:
        if call < 2:
            ask_after_work(heap, call, work)
        else:
            heap.word.value = call + 2

    assert run_block(sampler, handovers, 3, ask_after_work) == ()
    assert run_block(sampler, handovers, 3, ask_before_work) == (LateOutput(2, "out"),)
