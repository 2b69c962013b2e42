"""Sources of the python dialect: a module that defines `solution(...)`, with a live gloo process group."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import resource
import sys
import time
from typing import Any

from . import results
from .failures import CandidateError
from .gloo_compat import install
from .heap import Heap
from .native import usage_since

COMMUNICATION = ("c10d::", "gloo:")
"""Prefixes of the profiler's event names that are communication."""


class Python:
    """An imported module and the argument sets it is called on."""

    def __init__(
        self,
        message: dict[str, Any],
        source_fd: int,
        libraries: dict[str, str],
        heap: Heap,
        rank: int,
        world_size: int,
    ) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=world_size
        )
        install()
        self._heap, self._rank = heap, rank
        self._returns: str = message["returns"]
        self._groups: dict[str, Any] = {}
        self._arguments: list[list[Any]] = []
        self._outputs: list[list[dict[str, Any]]] = []
        self._solution = load_solution(source_fd, libraries)
        if not callable(self._solution):
            raise CandidateError("load_error", "the module defines no function `solution`")

    def bind(self, sets: list[dict[str, Any]], partitions: list[list[list[int]]]) -> None:
        """See `Dialect`."""
        groups = [self._process_group(partition) for partition in partitions]
        self._arguments = [self._bind_set(spec, groups) for spec in sets]
        self._outputs = [spec["outputs"] for spec in sets]

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

    def call(self, index: int, epoch: int) -> list[dict[str, Any]]:
        """See `Dialect`."""
        result = self._solution(*self._arguments[index])
        outputs = self._outputs[index]
        return results.deliver(self._heap, outputs, results.split(self._returns, outputs, result))

    def profile(self, indices: list[int], epoch: int) -> dict[str, Any]:
        """See `Dialect`."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]):  # starting the profiler for the first time takes long
            self._solution(*self._arguments[indices[0]])
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter_ns()
            inside = 0
            for index in indices:
                call_began = time.perf_counter_ns()
                self._solution(*self._arguments[index])
                inside += time.perf_counter_ns() - call_began
            wall = time.perf_counter_ns() - began
            usage = usage_since(before)
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
        communication = sum(e.self_cpu_time_total for e in events if e.key.startswith(COMMUNICATION))
        kernels = [{"name": e.key[:80], "calls": e.count, "self_us": e.self_cpu_time_total} for e in events[:8]]
        return {
            "wall_ns": wall,
            "inside_ns": inside,
            "wait_ns": 0,
            "copy_ns": int(communication * 1000),
            "put_bytes": 0,
            "got_bytes": 0,
            "signals": 0,
            "waits": 0,
            "kernels": kernels,
            **usage,
        }


def make_argument(heap: Heap, arg: dict[str, Any], groups: list[Any]) -> Any:
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
        extensions: name of a C++ extension built at compile time -> path of its library.
    """
    path = f"/proc/self/fd/{source_fd}"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    spec = importlib.util.spec_from_loader("candidate_module", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = "candidate.py"
    sys.modules["candidate_module"] = module
    if extensions:
        _serve_built_extensions(extensions)
    exec(compile(source, "candidate.py", "exec"), module.__dict__)
    return getattr(module, "solution", None)


def _serve_built_extensions(extensions: dict[str, str]) -> None:
    """Makes torch's inline builds answer with what the compile stage built, since a rank may start no compiler."""
    import torch.utils.cpp_extension as cpp_extension

    def built(name: str, *args: object, **kwargs: object) -> Any:
        if name not in extensions:
            raise RuntimeError(f"extension {name!r} was not built when the module was first imported")
        # The path has no suffix of an extension, so that the loader must be named.
        loader = importlib.machinery.ExtensionFileLoader(name, extensions[name])
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    cpp_extension.load_inline = built
    cpp_extension.load = built
