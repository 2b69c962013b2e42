"""One rank of a plain measurement: an ordinary process, in which kernels run as in production, without the evaluator.

Every kernel's block of calls is captured in one CUDA graph; blocks of all kernels are replayed in turn. Before each
block ranks meet, put zeros into their signals and scratch, since the numbers of a graph's calls return in each replay,
and meet again. On the CPU the same loop calls without graphs.

python -m benchmarks.rivals.plain_rank FD    serves the other end of a socket
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.rivals.messages import Begin, Begun, Kernel, KernelTimes, Measure, Measured
from pkb_gym.engine.compare.call_specs import call_runs
from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.hardware.host import processors
from pkb_gym.engine.problem.tensors import argument_leaves, flatten_value
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.rankside.devices import AnyHeap, make_device
from pkb_gym.engine.rankside.native import Native
from pkb_gym.engine.rankside.python import execute, make_argument
from pkb_gym.engine.reference import graphs
from pkb_gym.engine.reference.orders import MapHeaps, Ready
from pkb_gym.engine.reference.registered_memory import copies_of
from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.arguments import unroll
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.orders import Load

HEAD_START_CYCLES = 400_000
"""GPU cycles that a replay waits, about 200 us, so that the host has enqueued all of a block before it begins."""

MAX_RELATIVE_ERROR = 0.02
"""Norm of a wrong result's deviation, at least, over that of the right one."""


class PlainRank:
    """One rank.

    Args:
        wire: Connection to the gang.
    """

    def __init__(self, wire: Wire) -> None:
        begin, _, (rendezvous,) = wire.receive_with_fds(Begin)
        self._wire, self._begin = wire, begin
        self._device = make_device(begin.device, begin.rank, begin.world_size, begin.threads)
        self._device.prepare()
        self._device.join(f"file:///proc/self/fd/{rendezvous}")
        self._on_gpus = begin.device == "cuda"
        self._word = torch.zeros(1, device=self._device.torch_device)
        fds: tuple[int, ...] = ()
        if self._on_gpus:
            from pkb_gym.engine.rankside.cuda_memory import Segment

            self._segment = Segment(begin.segment_bytes, torch.cuda.current_device())
            fds = (self._segment.fd,)
            self._stream = torch.cuda.Stream()
            self._device.stream = self._stream.cuda_stream
        wire.send(Ready(), fds=fds)
        mapped, _, fds_of_heap = wire.receive_with_fds(MapHeaps)
        self._heap: AnyHeap = self._device.heap(fds_of_heap, mapped.segment_bytes)
        wire.send(Ready())

    def measure(self, order: Measure, libraries: list[int]) -> Measured:
        """Measures kernels in turn."""
        workload = order.workload.load()
        plan = workload.plan(range(order.sets), True, order.scratch_bytes, self._begin.segment_bytes)
        problem, rank = workload.problem, self._begin.rank
        for planned in plan.sets:
            ax = planned.axes[rank]
            key = workload.trial_key(planned.trial, True)
            drawn = make_inputs(problem, ax, key, workload.protocol, self._device.torch_device)
            for arg, value in zip(problem.data_args, drawn, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    self._heap.tensor(planned.leaves[rank][leaf.name].slot).copy_(tensor)
        sides = [_Side(self, order, plan, kernel) for kernel in order.kernels]
        expected = _Side(self, order, plan, Kernel("reference", "python", order.reference))
        expected.load(None)
        self._meet_anew(order.scratch_bytes)
        right = expected.call(0)
        for side in sides:
            self._wire.send(Begun(side.times.name))
            library = libraries.pop(0) if side.native else None
            self._try(side, lambda side=side, library=library: side.load(library))  # type: ignore[misc]
            self._meet_anew(order.scratch_bytes)
            self._try(side, lambda side=side: side.compare(right))  # type: ignore[misc]
            self._meet_anew(order.scratch_bytes)
            self._try(side, side.capture)
        for _ in range(order.rounds):
            for side in sides:
                if side.times.obstacle is None:
                    self._wire.send(Begun(side.times.name))
                    self._meet_anew(order.scratch_bytes)
                    side.run_block()
        return Measured(tuple(side.times for side in sides))

    def _try(self, side: _Side, step: Callable[[], object]) -> None:
        """Takes a step with a kernel, unless another has failed on any rank."""
        if side.times.obstacle is None:
            try:
                step()
            except Exception as error:  # noqa: BLE001  # whatever a kernel, or a library that is missing, raises
                side.fail(f"{type(error).__name__}: {error}".strip().splitlines()[0][:300])
        failures = torch.tensor([float(side.times.obstacle is not None)], device=self._device.torch_device)
        dist.all_reduce(failures)
        if failures.item() and side.times.obstacle is None:
            side.fail("it failed on another rank")

    def _meet_anew(self, scratch_bytes: int) -> None:
        """All ranks have ended what they did, then put zeros into their signals and scratch, then go on."""
        self._device.synchronize()
        dist.all_reduce(self._word)
        self._device.synchronize()
        self._heap.bytes()[abi.SIGNAL_OFFSET : abi.SCRATCH_OFFSET + scratch_bytes].zero_()
        if self._on_gpus:
            torch.cuda._sleep(HEAD_START_CYCLES)
        dist.all_reduce(self._word)

    def serve(self) -> None:
        """Measures until the connection ends."""
        while True:
            order, _, libraries = self._wire.receive_with_fds(Measure)
            self._wire.send(self.measure(order, libraries))


class _Side:
    """One kernel of a measurement on this rank."""

    def __init__(self, rank: PlainRank, order: Measure, plan: BlockPlan, kernel: Kernel) -> None:
        self._rank, self._order, self._plan, self._kernel = rank, order, plan, kernel
        self._problem = order.workload.load().problem
        self._graph: torch.cuda.CUDAGraph | None = None
        self._call: Callable[[int, int], object] = lambda index, epoch: None  # noqa: ARG005
        self.times = KernelTimes(kernel.name)

    @property
    def native(self) -> bool:
        """Whether it has a library."""
        return self._kernel.dialect == "native"

    def fail(self, obstacle: str) -> None:
        """Leaves it out from now on."""
        self.times = replace(self.times, obstacle=obstacle)

    def load(self, library: int | None) -> None:
        """Makes it callable on every argument set."""
        begin, heap, device = self._rank._begin, self._rank._heap, self._rank._device
        specs = unroll(call_runs(self._problem, self._plan, begin.rank, "python"))
        self._slots = [slot for result in specs[0].results for slot in result.slots]
        if library is not None:
            os.chdir(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))  # where it links to the library by a fixed name
            load = Load(
                dialect="native",
                processors=processors(),
                scratch_bytes=self._order.scratch_bytes,
                memory_bytes=0,
                returns="value",
                signature="",
                extensions={},
            )
            native = Native(load, library, heap, device, begin.rank, begin.world_size)
            native.bind(unroll(call_runs(self._problem, self._plan, begin.rank, "native")), self._plan.partitions)
            self._call = native.call
            return
        module = ModuleType(self._kernel.name)
        execute(self._kernel.source, module, f"{self._kernel.name}.py")
        arguments = [[make_argument(heap.tensor, argument, []) for argument in spec.arguments] for spec in specs]
        arguments = copies_of(arguments, torch.clone)
        if hasattr(module, "place"):
            arguments = [list(module.place(*of_call)) for of_call in arguments]
        self._call = lambda index, _: module.solution(*arguments[index])

    def call(self, index: int, epoch: int = 1) -> list[torch.Tensor]:
        """Calls it once; copies of its results."""
        self._rank._device.synchronize()  # native kernels have another stream than that on which ranks meet
        found = self._call(index, epoch)
        self._rank._device.synchronize()
        tensors = [self._rank._heap.tensor(slot) for slot in self._slots] if self.native else _tensors(found)
        return [tensor.clone() for tensor in tensors]

    def compare(self, right: Sequence[torch.Tensor]) -> None:
        """Compares the results of a call with the right ones.

        Raises:
            ValueError: they are wrong.
        """
        error = max(relative_error(*both) for both in zip(self.call(0), right, strict=True))
        if not error <= MAX_RELATIVE_ERROR:
            raise ValueError(f"its result is wrong: relative error {error:.3g}")
        self.times = replace(self.times, relative_error=error)

    def _block(self) -> None:
        for number in range(self._order.calls):
            self._call(number % self._order.sets, number + 1)

    def capture(self) -> None:
        """Captures its block, on GPUs.

        Raises:
            RuntimeError: it cannot be captured.
        """
        if not self._rank._on_gpus:
            return
        captured, obstacle = graphs.capture(lambda _: self._block(), 1, self._rank._stream)
        if obstacle is not None:
            raise RuntimeError(f"it cannot be captured: {obstacle}")
        (self._graph,) = captured

    def run_block(self) -> None:
        """Times a block, whose ranks have just met."""
        if self._graph is None:
            began = time.perf_counter()
            self._block()
            block_us = 1e6 * (time.perf_counter() - began)
        else:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self._graph.replay()
            end.record()
            torch.cuda.synchronize()
            block_us = 1e3 * begin.elapsed_time(end)
        self.times = replace(self.times, calls_us=(*self.times.calls_us, block_us / self._order.calls))


def relative_error(got: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the deviation over the norm of the right tensor.

    Elements that are alike deviate by 0, also infinite ones and NaN; it is infinite or NaN where another one is.
    """
    wide, exact = got.double(), right.double()
    alike = (wide == exact) | (wide.isnan() & exact.isnan())
    deviation = (wide - exact).masked_fill(alike, 0)
    return float(deviation.norm() / exact.nan_to_num(0, 0, 0).norm().clamp_min(1e-30))


def _tensors(value: Any) -> list[torch.Tensor]:  # noqa: ANN401  # what a solution returns
    return [value] if isinstance(value, torch.Tensor) else list(value)


if __name__ == "__main__":
    PlainRank(Wire(socket.socket(fileno=int(sys.argv[1])))).serve()
