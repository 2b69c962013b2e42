"""A process group for ranks that share a GPU, which NCCL refuses: collectives go through main memory and gloo.

Tensors of any device are copied to main memory, gloo works on the copies, and results are copied back when they are
waited for. Sources written for NCCL run on it as they are; their times on it do not predict those on NCCL.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

BACKEND = "host_gloo"
"""Name under which `register` makes it known to torch."""

_WRITING = (
    *("allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "recv"),
    *("_allgather_base", "_reduce_scatter_base", "alltoall_base"),
    # Names of the last three from torch 2.12 on.
    *("all_gather_single", "reduce_scatter_single", "all_to_all_single"),
)
"""Methods of a process group whose first argument takes the results."""

_READING = ("send",)


class HostWork(dist.Work):
    """An operation of gloo on copies.

    Args:
        work: Operation of gloo.
        results: The caller's tensors, each with the copy that gloo writes.
    """

    def __init__(self, work: Any, results: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work, self._results = work, results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for gloo, then copies the results back."""
        done = self._work.wait() if timeout is None else self._work.wait(timeout)
        results, self._results = self._results, []
        for tensor, copy in results:
            tensor.copy_(copy)
        return bool(done)

    def is_completed(self) -> bool:
        """Whether gloo is done; the results are there after `wait`."""
        return bool(self._work.is_completed())


class HostProcessGroup(dist.ProcessGroup):
    """A process group for GPU tensors whose collectives run in main memory.

    Args:
        gloo: A process group of the same ranks on tensors in main memory.
    """

    def __init__(self, gloo: dist.ProcessGroup) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]  # that of groups in Python
        self._gloo = gloo

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        """The name that `dist.get_backend` reports."""
        return BACKEND

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Waits for the other ranks; what was enqueued on a device goes on meanwhile, as with NCCL."""
        return self._gloo.barrier(dist.BarrierOptions())


def _through_main_memory(name: str, *, writes: bool) -> Callable[..., HostWork]:
    def operation(self: HostProcessGroup, first: Any, *others: Any, **kwargs: Any) -> HostWork:
        results: list[tuple[torch.Tensor, torch.Tensor]] = []
        copies = [_copied(first, results), *(_copied(each, []) for each in others)]
        return HostWork(getattr(self._gloo, name)(*copies, **kwargs), results if writes else [])

    return operation


def _copied(argument: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """An argument with copies in place of its tensors; each tensor and its copy are added to the pairs."""
    if isinstance(argument, torch.Tensor):
        copy = argument.detach().to("cpu", copy=True).contiguous()
        pairs.append((argument.detach(), copy))
        return copy
    if isinstance(argument, list) and argument and isinstance(argument[0], torch.Tensor | list):
        return [_copied(each, pairs) for each in argument]
    return argument


for _name in (*_WRITING, *_READING):
    if hasattr(dist.ProcessGroup, _name):
        setattr(HostProcessGroup, _name, _through_main_memory(_name, writes=_name in _WRITING))


def register() -> None:
    """Makes the backend known to torch; calling it again changes nothing."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _new_group, devices=["cpu", "cuda"])


def _new_group(store: Any, rank: int, world_size: int, timeout: timedelta) -> HostProcessGroup:
    gloo = dist.ProcessGroup(store, rank, world_size)
    backend = dist.ProcessGroupGloo(store, rank, world_size, timeout)
    gloo._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    gloo._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return HostProcessGroup(gloo)
