"""Finds where a solution makes its host wait for the device, on a machine without one.

The arguments are on the device "meta", which has shapes and no data: whatever needs data on the host cannot go on. The
process group is torch's fake one, of which one process is every rank.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from pkb_gym.engine.problem import Axes, Group, Linear, Problem, Scalar, Sparse, Tensor, TensorList
from pkb_gym.engine.problem.axes import resolve_shape
from pkb_gym.engine.problem.tensors import argument_leaves

META = torch.device("meta")


OBJECT_COLLECTIVES = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


class HostWait(Exception):
    """The host waits for the device."""


class NoHostData(TorchFunctionMode):
    """Refuses copies of host data to the device: one from pageable memory waits for the stream."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Makes the call unless it copies."""
        kwargs = kwargs or {}
        if func is torch.Tensor.new_tensor or (func in (torch.tensor, torch.as_tensor) and "device" in kwargs):
            raise HostWait("host data is copied to the device")
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            if isinstance(args[1], list) or any(isinstance(part, list) for part in index):
                raise HostWait("a list of indices is copied to the device")
        return func(*args, **kwargs)


def wait_of(call: Callable[..., Any], *args: Any) -> str | None:
    """Where a call makes the host wait: the reason, and the last line of Python outside torch; None if nowhere.

    Args:
        call: Call without any other error.
        args: Its arguments, tensors on `META`.
    """
    try:
        with NoHostData(), ExitStack() as stack:
            for name in OBJECT_COLLECTIVES:
                stack.enter_context(patch.object(dist, name, _no_objects))
            call(*args)
    except (HostWait, NotImplementedError, RuntimeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/torch/" not in frame.filename and frame.filename != __file__]
        return f"{str(error).splitlines()[0]} ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})"
    return None


def wait_of_reference(problem: Problem, solution: Callable[..., Any], ax: Axes) -> str | None:
    """Where one rank's call of a solution makes the host wait, as `wait_of` says it."""
    return wait_of(solution, *[_argument(arg, ax) for arg in problem.args])


@contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """A default process group of `world_size` ranks, of which this process is rank 0; collectives do nothing."""
    import torch.distributed._tools.fake_collectives  # noqa: F401  # makes collectives take tensors without data

    dist.init_process_group("cpu:fake,meta:fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _no_objects(*_: Any, **__: Any) -> None:
    raise HostWait("objects of the host are exchanged")


def _argument(arg: Any, ax: Axes) -> Any:
    """The argument as `solution` receives it, without data."""
    if isinstance(arg, Scalar):
        value = ax[arg.axis or arg.name]
        return list(value) if isinstance(value, tuple) else value
    if isinstance(arg, Group):
        partition = ax[arg.axis or arg.name]
        if partition is None:
            return None
        groups = [dist.new_group(list(part)) for part in partition]
        return next(group for group, part in zip(groups, partition, strict=True) if ax.r in part)
    leaves = {
        leaf.name: torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype), device=META)
        for leaf in argument_leaves(arg, ax)
    }
    if isinstance(arg, Tensor):
        return leaves.get(arg.name)
    if isinstance(arg, TensorList):
        if arg.bare is not None and ax[arg.bare]:
            return leaves[f"{arg.name}[0]"]
        return [leaves.get(f"{arg.name}[{i}]") for i in range(len(ax.shapes(arg.shapes)))]
    if isinstance(arg, Sparse):
        indices, values = leaves.values()
        shape = resolve_shape(arg.shape, ax)
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
    assert isinstance(arg, Linear)
    weight = leaves[f"{arg.name}.weight"]
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=arg.bias, dtype=weight.dtype, device=META)
    return layer.requires_grad_(False)
