"""Sources of the python dialect: a module that defines `solution(...)`, with a live process group."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.wire.arguments import Argument, CallSpec, GroupArgument, ScalarArgument, TensorSlot
from pkb_gym.engine.wire.orders import FILE_NAME, Claims, Load, OperatorTime, Partition, ProfileDone, Transfers

from . import cuda_profile
from .devices import AnyHeap, Device
from .extensions import may_build, serve
from .failures import CandidateError
from .process_groups import ProcessGroups
from .results import Delivery
from .usage import usage_since

if TYPE_CHECKING:
    import torch

SHIMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims")
"""Packages that solutions written for the published benchmark import; on the path of gangs alone."""

COMMUNICATION = ("c10d::", "gloo:")
"""Prefixes of the profiler's event names that are communication."""


class Python:
    """An imported module and the argument sets it is called on."""

    def __init__(
        self,
        order: Load,
        source_fd: int,
        libraries: dict[str, str],
        heap: AnyHeap,
        device: Device,
        rank: int,
    ) -> None:
        device.join()
        self._heap, self._device, self._rank = heap, device, rank
        self._returns = order.returns
        self._groups = ProcessGroups(rank)
        self._arguments: list[list[Any]] = []
        self._deliveries: list[Delivery] = []
        self._solution = load_solution(source_fd, libraries)
        if not callable(self._solution):
            raise CandidateError("load_error", "the module defines no function `solution`")

    def bind(self, calls: list[CallSpec], partitions: tuple[Partition, ...]) -> None:
        """Makes the arguments of every call."""
        groups = [self._groups.of(partition) for partition in partitions]
        self._arguments = [self._bind_call(call, groups) for call in calls]
        self._deliveries = [Delivery(self._heap, self._returns, call.results) for call in calls]

    def _bind_call(self, call: CallSpec, groups: list[Any]) -> list[Any]:
        self._heap.populate(call.offset, call.nbytes)
        return [make_argument(self._heap.tensor, argument, groups) for argument in call.arguments]

    def call(self, index: int, epoch: int, hold_ns: int = 0) -> Claims:
        """Calls `solution` on one set; returns its claims."""
        return tuple(self._deliveries[index].deliver(self._solution(*self._arguments[index]))[1])

    def profile(self, indices: tuple[int, ...], epoch: int, link_bytes_per_s: float | None) -> ProfileDone:
        """Calls `solution` on each set; reports where the time goes."""
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
        return ProfileDone(
            wall_ns=wall,
            inside_ns=sum(end - begin for begin, end in slices),
            calls_ns=tuple(slices),
            usage=usage,
            transfers=Transfers(copy_ns=int(communication * 1000)),
            operators=tuple(OperatorTime(e.key[:80], e.count, e.self_cpu_time_total) for e in events[:8]),
        )

    def _profile_on_gpu(self, indices: tuple[int, ...], epoch: int, link_bytes_per_s: float | None) -> ProfileDone:
        import torch.distributed as dist

        return cuda_profile.profile_calls(
            lambda index, _: self._solution(*self._arguments[index]),
            indices,
            epoch,
            synchronize=self._device.synchronize,
            meet=lambda: cuda_profile.meet(self._heap, self._rank, dist.get_world_size(), epoch),
            link_bytes_per_s=link_bytes_per_s,
        )


def make_argument(tensor: Callable[[TensorSlot], torch.Tensor], argument: Argument, groups: list[Any]) -> Any:
    """One argument of `solution`.

    Args:
        tensor: Function that gives the tensor of a place in the heap.
        argument: Description of the argument.
        groups: Process groups of the block's partitions.
    """
    import torch

    if isinstance(argument, ScalarArgument):
        value = argument.value
        return list(value) if isinstance(value, tuple) else value
    if isinstance(argument, GroupArgument):
        return None if argument.partition is None else groups[argument.partition]
    tensors = [None if slot is None else tensor(slot) for slot in argument.slots]
    if argument.kind == "list":
        return tensors
    if argument.kind in ("tensor", "bare"):
        return tensors[0]
    if argument.kind == "sparse":
        indices, values = tensors
        assert indices is not None and values is not None and argument.shape is not None
        return torch.sparse_coo_tensor(indices, values, argument.shape, is_coalesced=True, check_invariants=False)
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
        source_fd: The source, as a file.
        extensions: Extensions that were built at compile time; see `extensions.serve`.
    """
    path = f"/proc/self/fd/{source_fd}"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    if may_build(source):
        serve(extensions)
    track_no_resources()
    module = new_module()
    execute(source, module)
    import_what_first_calls_import(source)
    return getattr(module, "solution", None)


COMPILER_USERS = re.compile(
    r"\boptim\b|functional_collectives|\bcustom_op\b|\btorch\.compiler?\b|\btorch\.func\b|\bimport func\b|\bfunctorch\b"
    r"|\bjvp\b|\bcheckpoint\b|\bflex_attention\b|\bDistributedDataParallel\b|\b(?:fsdp|fully_shard)\b"
    r"|\bFullyShardedDataParallel\b|\bdistributed\._?tensor\b|\bDTensor\b"
)
"""Parts of torch that import its compiler when they are first used."""


def import_what_first_calls_import(source: str) -> None:
    """Imports torch's compiler for sources that use it, if only to report that it ignores them.

    That takes seconds, of several ranks on few processors as long as a block may take; loading has more time.
    """
    if COMPILER_USERS.search(source):
        importlib.import_module("torch._dynamo")


def track_no_resources() -> None:
    """Lets `multiprocessing` make shared memory and semaphores, whose names go with the gang.

    By itself it starts a process that removes what nobody else has removed, and a rank may not start one.
    """

    def ignore(name: str, kind: str) -> None:
        """Nothing."""

    resource_tracker.register = resource_tracker.unregister = ignore  # type: ignore[assignment]


def execute(source: str, module: ModuleType, file_name: str = FILE_NAME) -> None:
    """Executes a candidate's source, or a reference's, in its module; raises whatever it raises.

    Triton finds what it needs: the text of its kernels, and a cache in this gang's own folder. One that outlives the
    gang could be written by a candidate, and others would load what lies there.

    Args:
        source: The text.
        module: An empty one.
        file_name: Name of the source in tracebacks.
    """
    # `inspect` asks linecache for the text where there is no file.
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    use_own_triton_cache()
    exec(compile(source, file_name, "exec"), module.__dict__)


def use_own_triton_cache() -> None:
    """Has Triton keep what it compiles in the working folder, which goes with the gang."""
    os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "triton")


def new_module() -> ModuleType:
    """The empty module of a candidate; from now on, this process can import what solutions expect to find."""
    if SHIMS not in sys.path:
        sys.path.append(SHIMS)
    spec = importlib.util.spec_from_loader("candidate_module", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = FILE_NAME
    sys.modules["candidate_module"] = module
    return module
