"""Sources of the python dialect: a module that defines `solution(...)`, with a live process group."""

from __future__ import annotations

import importlib.util
import linecache
import os
import resource
import sys
import time
from types import ModuleType
from typing import Any

from . import cuda_profile, results
from .devices import AnyHeap, Device
from .extensions import may_build, serve
from .failures import CandidateError
from .usage import usage_since

SHIMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims")
"""Packages that solutions written for the published benchmark import; on the path of gangs alone."""

FILE_NAME = "candidate.py"
"""What a candidate's source is called in tracebacks."""

COMMUNICATION = ("c10d::", "gloo:")
"""Prefixes of the profiler's event names that are communication."""


class Python:
    """An imported module and the argument sets it is called on."""

    def __init__(
        self,
        message: dict[str, Any],
        source_fd: int,
        libraries: dict[str, str],
        heap: AnyHeap,
        device: Device,
        rank: int,
    ) -> None:
        device.join()
        self._heap, self._device, self._rank = heap, device, rank
        self._returns: str = message["returns"]
        self._groups: dict[str, Any] = {}
        self._arguments: list[list[Any]] = []
        self._deliveries: list[results.Delivery] = []
        self._solution = load_solution(source_fd, libraries)
        if not callable(self._solution):
            raise CandidateError("load_error", "the module defines no function `solution`")

    def bind(self, sets: list[dict[str, Any]], partitions: list[list[list[int]]]) -> None:
        """See `Dialect`."""
        groups = [self._process_group(partition) for partition in partitions]
        self._arguments = [self._bind_set(spec, groups) for spec in sets]
        self._deliveries = [results.Delivery(self._heap, self._returns, spec["outputs"]) for spec in sets]

    def _bind_set(self, spec: dict[str, Any], groups: list[Any]) -> list[Any]:
        self._heap.populate(spec["offset"], spec["bytes"])
        return [make_argument(self._heap, arg, groups) for arg in spec["args"]]

    def _process_group(self, partition: list[list[int]]) -> Any:
        """The group of this rank; every rank makes every group of the partition, in the same order."""
        import torch.distributed as dist

        key = repr(partition)
        if key not in self._groups:
            for ranks in partition:
                group = dist.new_group(ranks)
                if self._rank in ranks:
                    self._groups[key] = group
        return self._groups.get(key)

    def call(self, index: int, epoch: int) -> list[results.Claim]:
        """See `Dialect`."""
        return self._deliveries[index].deliver(self._solution(*self._arguments[index]))[1]

    def profile(self, indices: list[int], epoch: int, link_bytes_per_s: float | None) -> dict[str, Any]:
        """See `Dialect`."""
        from torch.autograd.profiler import profile  # see `cuda_profile.Recording`

        if self._device.name == "cuda":
            return self._profile_on_gpu(indices, epoch, link_bytes_per_s)
        with profile():  # its first start takes longer
            self._solution(*self._arguments[indices[0]])
        with profile() as profiler:
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter_ns()
            slices = []
            for index in indices:
                call_began = time.perf_counter_ns()
                self._solution(*self._arguments[index])
                slices.append((call_began, time.perf_counter_ns()))
            wall = time.perf_counter_ns() - began
            usage = usage_since(before)
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        communication = sum(e.self_cpu_time_total for e in events if e.key.startswith(COMMUNICATION))
        kernels = [{"name": e.key[:80], "calls": e.count, "self_us": e.self_cpu_time_total} for e in events[:8]]
        return {
            "wall_ns": wall,
            "inside_ns": sum(end - begin for begin, end in slices),
            "slices": slices,
            "wait_ns": 0,
            "copy_ns": int(communication * 1000),
            "put_bytes": 0,
            "got_bytes": 0,
            "signals": 0,
            "waits": 0,
            "kernels": kernels,
            **usage,
        }

    def _profile_on_gpu(self, indices: list[int], epoch: int, link_bytes_per_s: float | None) -> dict[str, Any]:
        import torch.distributed as dist

        return cuda_profile.profile_calls(
            lambda index, _: self._solution(*self._arguments[index]),
            indices,
            epoch,
            synchronize=self._device.synchronize,
            meet=lambda: cuda_profile.meet(self._heap, self._rank, dist.get_world_size(), epoch),
            link_bytes_per_s=link_bytes_per_s,
        )


def make_argument(heap: AnyHeap, arg: dict[str, Any], groups: list[Any]) -> Any:
    """One argument of `solution`, made of tensors that lie in the heap."""
    import torch

    kind = arg["kind"]
    if kind == "value":
        value = arg["value"]
        # JSON has lists where a list of shapes has tuples.
        return [tuple(v) if isinstance(v, list) else v for v in value] if isinstance(value, list) else value
    if kind == "group":
        return None if arg["index"] is None else groups[arg["index"]]
    tensors = [None if slot is None else heap.tensor(slot) for slot in arg["leaves"]]
    if kind == "list":
        return tensors
    if kind in ("tensor", "bare"):
        return tensors[0]
    if kind == "sparse":
        indices, values = tensors
        assert indices is not None and values is not None
        shape = tuple(arg["shape"])
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    weight, bias = tensors
    assert weight is not None
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = torch.nn.Parameter(bias, requires_grad=False)
    return module


def load_solution(source_fd: int, extensions: dict[str, str]) -> Any:
    """Executes a module's source and gives its `solution`, or None.

    Args:
        source_fd: the source, as a file.
        extensions: those that were built at compile time; see `extensions.serve`.
    """
    path = f"/proc/self/fd/{source_fd}"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if may_build(source):
        serve(extensions)
    module = new_module()
    execute(source, module)
    return getattr(module, "solution", None)


def execute(source: str, module: ModuleType) -> None:
    """Executes a candidate's source in its module; raises whatever it raises."""
    # Triton reads its kernels' text through `inspect`, which asks linecache where there is no file.
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    exec(compile(source, FILE_NAME, "exec"), module.__dict__)


def new_module() -> ModuleType:
    """The empty module of a candidate; from now on, this process can import what solutions expect to find."""
    if SHIMS not in sys.path:
        sys.path.append(SHIMS)
    os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "triton")  # thrown away: others load what lies there
    spec = importlib.util.spec_from_loader("candidate_module", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = FILE_NAME
    sys.modules["candidate_module"] = module
    return module
