"""One rank of `gpu_baselines`: makes inputs, runs `reference.py` as it is and as CUDA graphs, and times both."""

from __future__ import annotations

import gc
import os
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.gpu_baselines_records import BaselineTask
from pkb_gym.engine.compare.call_specs import call_spec
from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.problem.tensors import argument_leaves, flatten_value
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.rankside.devices import NO_FLIGHT_RECORDER
from pkb_gym.engine.rankside.gloo_compat import install
from pkb_gym.engine.rankside.process_groups import ProcessGroups
from pkb_gym.engine.rankside.processors import bind_rank
from pkb_gym.engine.rankside.python import make_argument
from pkb_gym.engine.reference.graphs import capture, host_wait
from pkb_gym.engine.support.processors import find_fastest, move_to
from pkb_gym.engine.wire.arguments import TensorSlot
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.problems.loading import load_module

KEY = b"gpu_baselines"
"""Inputs are the same in every run."""

WARM_UP_CALLS = 10
WARM_UP_S = 1.5
"""Calls that would take longer, the first one apart, are warmed up twice only."""

BLOCK_S = 0.01
"""Length that a block aims at: ranks leave a barrier up to about 0.1 ms apart."""

MAX_CALLS = 256
MIN_BLOCKS, MAX_BLOCKS = 3, 12
MAX_SETS = 16
SETS_MEMORY = 0.25
"""Most of the device's memory that argument sets take."""

SETS_S = 1.5
"""Seconds that making more argument sets than the first may take."""

MAX_GRAPHS = 4
GRAPH_MEMORY_MARGIN = 1.2
"""A graph's memory pool is its own; by this over what an ordinary call takes."""

T = TypeVar("T")
Call = Callable[[int], object]
"""Calls a baseline on the argument set of that number, modulo how many there are."""


class Tensors:
    """Stands for the symmetric heap: the tensors of one argument set, each with memory of its own."""

    def __init__(self) -> None:
        self._by_slot: dict[TensorSlot, torch.Tensor] = {}
        self.nbytes = 0

    def put(self, slot: TensorSlot, tensor: torch.Tensor) -> None:
        """Keeps a contiguous copy: what is drawn may be a view of something larger, or expanded."""
        self._by_slot[slot] = tensor.clone(memory_format=torch.contiguous_format)
        self.nbytes += tensor.numel() * tensor.element_size()

    def tensor(self, slot: TensorSlot) -> torch.Tensor:
        """The kept copy of a slot."""
        return self._by_slot[slot]


class Rank:
    """One process of the gang."""

    def __init__(self, connection: Connection, device: str, rank: int, world_size: int, rendezvous: str) -> None:
        self._connection, self._rank, self._world_size = connection, rank, world_size
        self._cuda = device == "cuda"
        self._device = torch.device(f"cuda:{rank}" if self._cuda else "cpu")
        torch.set_num_threads(bind_rank(rank, world_size))  # as the engine's reference gang is
        self._processors = sorted(os.sched_getaffinity(0))
        if self._cuda:
            torch.cuda.set_device(self._device)
            os.environ |= NO_FLIGHT_RECORDER
        backend = "nccl" if self._cuda else "gloo"
        dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
        self._control = dist.new_group(backend="gloo")
        """Process group for agreement between the hosts, beside the baseline's own communication."""
        if not self._cuda:
            install()
        self._groups = ProcessGroups(rank)
        self._solutions: dict[Path, Callable[..., object]] = {}

    def serve(self) -> None:
        """Measures what the parent asks for, until the connection ends."""
        self._connection.send({"row": self._about() if self._rank == 0 else {}, "idle": True})
        with suppress(EOFError):
            while True:
                task = self._connection.recv()
                try:
                    self._measure(task)
                except Exception as error:  # noqa: BLE001  # costs this problem alone; the parent decides whether to go on
                    self._connection.send({"failed": error_text(error)})
                self._connection.send({"idle": self._tidy()})

    def _about(self) -> dict[str, Any]:
        if not self._cuda:
            return {"device": "cpu", "backend": "gloo"}
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        return {"device": torch.cuda.get_device_name(self._device), "backend": f"NCCL {nccl}, NVLS off"}

    def _tidy(self) -> bool:
        """Frees what the task held; False where the CUDA context is beyond use."""
        gc.collect()
        if not self._cuda:
            return True
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # fails after a capture that was broken off
        except RuntimeError:
            return False
        return True

    def _agree(self, value: T) -> list[T]:
        """Every rank's value."""
        values: list[Any] = [None] * self._world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def _send(self, row: dict[str, Any]) -> None:
        if self._rank == 0:
            self._connection.send({"row": row})

    def _measure(self, task: BaselineTask) -> None:
        problem = find_problem(task.problem)
        workload = Workload(problem, task.size, self._world_size, problem.dtypes[0], task.protocol, KEY, 0, 0)
        solution = self._solution(task.reference or Path(problem.declared_in).with_name("reference.py"))
        began = self._now()
        arguments, set_bytes = self._make_set(workload, 0)
        inputs_s = max(self._agree(self._now() - began))
        sets = [arguments]

        def call(index: int) -> object:
            return solution(*sets[index % len(sets)])

        first_call_s, call_s, working_bytes = self._warm_up(call)
        warm_inputs_s = self._more_sets(workload, sets, set_bytes, working_bytes)
        samples = self._blocks(call, call_s, task.measure_s)
        self._send(
            {
                "eager": samples,
                "inputs_s": round(inputs_s, 4),
                "warm_inputs_s": None if warm_inputs_s is None else round(warm_inputs_s, 4),
                "sets": len(sets),
                "set_bytes": set_bytes,
                "working_bytes": working_bytes,
                "first_call_s": round(first_call_s, 3),
            }
        )
        graphs, reason = self._capture(solution, sets, call, working_bytes)
        if graphs:
            samples = self._blocks(lambda index: graphs[index % len(graphs)].replay(), call_s, task.measure_s)
            for graph in graphs:
                graph.reset()
        self._send({"graph": samples if graphs else None, "no_graph_because": reason})

    # ---- inputs and arguments ---------------------------------------------------------------------------------------

    def _solution(self, path: Path) -> Callable[..., object]:
        """The solution of a file, where Triton finds the text of its kernels."""
        if path not in self._solutions:
            self._solutions[path] = load_module(path, f"reference_{len(self._solutions)}").solution
        return self._solutions[path]

    def _make_set(self, workload: Workload, trial: int) -> tuple[list[Any], int]:
        """Draws one trial's inputs on the device; the arguments of one call, and their bytes."""
        problem = workload.problem
        plan = workload.plan([trial], True, 0)
        planned = plan.sets[0]
        ax = planned.axes[self._rank]
        with torch.device(self._device):
            key = workload.trial_key(trial, True)
            drawn = make_inputs(problem, ax, key, workload.protocol, device=str(self._device))
        tensors = Tensors()
        for arg, value in zip(problem.data_args, drawn, strict=True):
            for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                tensors.put(planned.leaves[self._rank][leaf.name].slot, tensor)
        groups = [self._groups.of(partition) for partition in plan.partitions]
        spec = call_spec(problem, plan, planned, self._rank, "python")
        arguments = [make_argument(tensors, argument, groups) for argument in spec.arguments]  # type: ignore[arg-type]  # see Tensors
        return arguments, tensors.nbytes

    def _more_sets(self, workload: Workload, sets: list[list[Any]], set_bytes: int, working_bytes: int) -> float | None:
        """Adds argument sets as memory and time allow; seconds for one of them, the slowest rank's."""
        total = torch.cuda.get_device_properties(self._device).total_memory if self._cuda else 2**32
        room = min(SETS_MEMORY * total, 0.8 * total - working_bytes)
        fitting = int(room / max(1, set_bytes))
        wanted = min(self._agree(min(MAX_SETS, fitting)))
        if wanted < 2:
            return None
        began = self._now()
        sets.append(self._make_set(workload, 1)[0])
        warm_s = max(self._agree(self._now() - began))
        affordable = 2 + int(SETS_S / max(warm_s, 1e-6))
        sets.extend(self._make_set(workload, trial)[0] for trial in range(2, min(wanted, affordable)))
        return warm_s

    # ---- timing -----------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The clock, after all work has been done."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _warm_up(self, call: Call) -> tuple[float, float, int]:
        """Seconds of the first call and of a warm one, the slowest rank's; and the most memory that a call takes."""
        before = 0
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        first_s, call_s = (max(self._agree(self._block(call, 0, 1)[0])) for _ in range(2))
        if WARM_UP_CALLS * call_s < WARM_UP_S:
            call_s = max(self._agree(self._block(call, 0, WARM_UP_CALLS - 2)[0]))
        return first_s, call_s, torch.cuda.max_memory_allocated() - before if self._cuda else 0

    def _block(self, call: Call, first: int, count: int) -> tuple[float, float | None]:
        """Seconds a call by this host's clock, and by events on the device."""
        begin, end = (torch.cuda.Event(enable_timing=True) if self._cuda else None for _ in range(2))
        self._now()
        if self._cuda:
            move_to(find_fastest(self._processors))  # likewise
        dist.barrier(group=self._control)
        gc.disable()
        began = time.perf_counter()
        if begin is not None:
            begin.record()
        for index in range(first, first + count):
            call(index)
        if end is not None:
            end.record()
        seconds = (self._now() - began) / count
        gc.enable()
        device_s = begin.elapsed_time(end) * 1e-3 / count if begin is not None and end is not None else None
        return seconds, device_s

    def _blocks(self, call: Call, call_s: float, measure_s: float) -> dict[str, Any]:
        """Times blocks of calls back to back; the ranks agree on `call_s`, about what a call takes."""
        call_s = max(self._agree(self._block(call, 0, min(WARM_UP_CALLS, calls_in_block(call_s)))[0]))
        count = calls_in_block(call_s)
        blocks = max(MIN_BLOCKS, min(MAX_BLOCKS, int(measure_s / (count * call_s))))
        mine = [self._block(call, block * count, count) for block in range(blocks)]
        by_rank = self._agree(mine)
        last_us = [max(times) * 1e6 for times in zip(*([wall for wall, _ in rank] for rank in by_rank), strict=True)]
        rank0_us = [(wall if device_s is None else device_s) * 1e6 for wall, device_s in by_rank[0]]
        return summarise(last_us, rank0_us, count)

    # ---- CUDA graphs ------------------------------------------------------------------------------------------------

    def _capture(
        self, solution: Callable[..., object], sets: list[list[Any]], call: Call, working_bytes: int
    ) -> tuple[list[torch.cuda.CUDAGraph], str | None]:
        """Graphs of one call each, of the first sets in turn; or none on any rank, and why."""
        if not self._cuda:
            return [], "no CUDA device"
        obstacle = self._first(host_wait(lambda: call(0)))
        if obstacle is None:
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(self._device)[0]
            scarce = free < GRAPH_MEMORY_MARGIN * working_bytes
            obstacle = self._first("too little memory for a second set of intermediate results" if scarce else None)
        if obstacle is not None:
            return [], obstacle
        graphs, failure = capture(lambda index: solution(*sets[index]), min(MAX_GRAPHS, len(sets)))
        obstacle = self._first(failure)
        return ([], obstacle) if obstacle is not None else (graphs, None)

    def _first(self, reason: str | None) -> str | None:
        """The reason of the first rank that has one."""
        return next((found for found in self._agree(reason) if found is not None), None)


def error_text(error: Exception) -> str:
    """The error, with its place in the problem's own files if it was there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name in ("reference.py", "problem.py")]
    where = (own or frames)[-1]
    return f"{type(error).__name__}: {str(error)[:500]} ({Path(where.filename).name}:{where.lineno})"


def calls_in_block(call_s: float) -> int:
    """The number of calls in a block of about `BLOCK_S`."""
    return max(1, min(MAX_CALLS, round(BLOCK_S / call_s)))


def summarise(last_us: list[float], rank0_us: list[float], calls: int) -> dict[str, Any]:
    """The report on one baseline's blocks.

    Args:
        last_us: Microseconds a call of each block on the slowest rank, by the hosts' clocks.
        rank0_us: Microseconds a call of each block on rank 0, by events on its device.
        calls: Number of calls in a block, at least 1.
    """
    low, middle, high = statistics.quantiles(last_us, n=4, method="inclusive")
    return {
        "lower_quartile_us": round(low, 2),
        "median_us": round(middle, 2),
        "spread": round((high - low) / middle, 4),
        "rank0_mean_us": round(statistics.mean(rank0_us), 2),
        "rank0_median_us": round(statistics.median(rank0_us), 2),
        "calls_per_block": calls,
    }
