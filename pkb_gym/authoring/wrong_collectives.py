"""Wrong collectives in place of those of torch.distributed: what a rank has itself, nothing, or means for sums.

Imports nothing of the package: its text becomes part of candidates.
"""

# ruff: noqa: ARG002, A002  # the signatures are those of torch.distributed

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Decide = Callable[[int, str], bool]
"""Whether the call of that number, from 0, and name is replaced; counted on each rank over all collectives."""

Group: TypeAlias = "dist.ProcessGroup | None"

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter_tensor")
"""The collectives that can sum over ranks."""


class FinishedWork:
    """The handle of an asynchronous collective with nothing to wait for."""

    def wait(self) -> bool:
        """Returns at once."""
        return True


def _same_shape(out: torch.Tensor, source: torch.Tensor) -> bool:
    return out.shape == source.shape and out.dtype == source.dtype


def _fill(outs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], own: int, others: bool) -> None:
    """Copies the own piece, and with `others` takes own data for the pieces of other ranks, where it fits; else 0."""
    for place, (out, source) in enumerate(zip(outs, sources, strict=True)):
        if _same_shape(out, source) and (others or place == own):
            out.copy_(source)
        else:
            out.zero_()


def _pieces(tensor: torch.Tensor, splits: Sequence[int] | None, size: int) -> Sequence[torch.Tensor]:
    return tensor.split(list(splits)) if splits else tensor.chunk(size)  # type: ignore[no-untyped-call]


class Substitutes:
    """A stand-in for each collective, called as the collective is.

    Args:
        others: Whether own data stands for that of other ranks, where it fits; else zeros do.
    """

    def __init__(self, others: bool) -> None:
        self.others = others

    def all_reduce(self, tensor: torch.Tensor, op: object = None, group: Group = None) -> None:
        """Leaves the rank's own part."""

    def reduce(
        self, tensor: torch.Tensor, dst: int | None = None, op: object = None, group: Group = None, **_: Any
    ) -> None:
        """Leaves the rank's own part."""

    def broadcast(
        self, tensor: torch.Tensor, src: int | None = None, group: Group = None, group_src: int | None = None
    ) -> None:
        """Leaves the tensors of all ranks as they are, or zeros on all but the source."""
        mine = dist.get_rank() if group_src is None else dist.get_rank(group)
        if not self.others and mine != (src if group_src is None else group_src):
            tensor.zero_()

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Group = None) -> None:
        """The own tensor in its place."""
        _fill(tensor_list, [tensor] * len(tensor_list), dist.get_rank(group), self.others)

    def all_gather_into_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Group = None
    ) -> None:
        """The own tensor in its place."""
        rows = output_tensor.view(dist.get_world_size(group), -1)
        _fill(list(rows), [input_tensor.reshape(-1)] * len(rows), dist.get_rank(group), self.others)

    def all_gather_object(self, object_list: list[object], obj: object, group: Group = None) -> None:
        """The own object everywhere."""
        object_list[:] = [obj] * len(object_list)

    def reduce_scatter_tensor(
        self, output: torch.Tensor, input: torch.Tensor, op: object = None, group: Group = None
    ) -> None:
        """The own piece of the own tensor."""
        output.copy_(input.reshape(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(output))

    def all_to_all(
        self, output_tensor_list: list[torch.Tensor], input_tensor_list: list[torch.Tensor], group: Group = None
    ) -> None:
        """The piece for the rank itself."""
        _fill(output_tensor_list, input_tensor_list, dist.get_rank(group), self.others)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Group = None,
    ) -> None:
        """The piece for the rank itself."""
        size = dist.get_world_size(group)
        outs, sources = _pieces(output, output_split_sizes, size), _pieces(input, input_split_sizes, size)
        _fill(outs, sources, dist.get_rank(group), self.others)

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | None = None,
        dst: int | None = None,
        group: Group = None,
    ) -> None:
        """The own tensor in its place, on the destination."""
        if gather_list:
            _fill(gather_list, [tensor] * len(gather_list), dist.get_rank(group), self.others)

    def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: list[torch.Tensor] | None = None,
        src: int | None = None,
        group: Group = None,
    ) -> None:
        """The own piece on the source, zeros elsewhere."""
        if scatter_list:
            tensor.copy_(scatter_list[dist.get_rank(group)])
        else:
            tensor.zero_()

    def send(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """Sends nothing."""

    def recv(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """Zeros."""
        tensor.zero_()

    def batch_isend_irecv(self, p2p_op_list: Sequence[dist.P2POp]) -> list[FinishedWork]:
        """Delivers the rank's own data, in order, or zeros."""
        sent = [op.tensor for op in p2p_op_list if op.op is dist.isend]
        received = [op.tensor for op in p2p_op_list if op.op is dist.irecv]
        for place, out in enumerate(received):
            source = sent[place] if place < len(sent) else None
            if self.others and source is not None and _same_shape(out, source):
                out.copy_(source)
            else:
                out.zero_()
        return [FinishedWork() for _ in p2p_op_list]


NAMES = tuple(name for name in vars(Substitutes) if not name.startswith("_"))
"""The collectives that are replaced."""


@contextmanager
def replaced(decide: Decide, others: bool) -> Iterator[None]:
    """Within it, the calls that `decide` names have a substitute."""
    substitutes, count = Substitutes(others), 0

    def wrap(name: str) -> Callable[..., Any]:
        original, substitute = getattr(dist, name), getattr(substitutes, name)

        def call(*args: Any, async_op: bool = False, **kwargs: Any) -> object:
            nonlocal count
            count += 1
            if decide(count - 1, name):
                work = substitute(*args, **kwargs)
                return FinishedWork() if async_op else work
            return original(*args, **kwargs, **({"async_op": True} if async_op else {}))

        return call

    with _patched({name: wrap(name) for name in NAMES}):
        yield


@contextmanager
def means() -> Iterator[list[str]]:
    """Within it, reductions that sum over ranks give the mean; names of those that did so far."""
    summed: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def call(
            tensor: torch.Tensor, *args: Any, async_op: bool = False, group: Group = None, **kwargs: Any
        ) -> object:
            original(tensor, *args, group=group, **kwargs)
            given = [arg for arg in (*args, *kwargs.values()) if not isinstance(arg, int)]  # no rank: 3 == MAX
            others = [arg for arg in given if arg in (dist.ReduceOp.MAX, dist.ReduceOp.MIN)]
            if not others:
                summed.append(name)
                size = dist.get_world_size(group)
                tensor.copy_(tensor / size if tensor.is_floating_point() else tensor // size)
            return FinishedWork() if async_op else None

        return call

    with _patched({name: wrap(name) for name in REDUCTIONS}):
        yield summed


@contextmanager
def _patched(functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Functions of torch.distributed for a while."""
    before = {name: getattr(dist, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(dist, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)
