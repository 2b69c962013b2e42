"""The reference of a problem, with fewer bits of what crosses the link; a rank's own part stays whole.

That is the cheapest wrong solution that is nearly right: it saves half of the traffic and none of the work.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.problems.support import find_problem

Code = Callable[[torch.Tensor], torch.Tensor]
"""Rounds floating numbers; same shape and dtype."""


class Done:
    """A collective that has ended."""

    def wait(self) -> bool:
        """Returns at once."""
        return True


def whole_numbers(bits: int, shared: int) -> Code:
    """Signed whole numbers of so many bits, times a scale that so many neighbours share."""

    def code(values: torch.Tensor) -> torch.Tensor:
        blocks = values.reshape(-1).double().split(shared)
        steps = [block.abs().max().clamp(min=1e-300) / (2 ** (bits - 1) - 1) for block in blocks]
        rounded = [(block / step).round() * step for block, step in zip(blocks, steps, strict=True)]
        return torch.cat(rounded).view(values.shape).to(values.dtype)

    return code


def companded(values: torch.Tensor) -> torch.Tensor:
    """8 bits: a sign, and 127 steps that grow with the number."""
    wide = values.double()
    unit = wide.square().mean().sqrt().clamp(min=1e-300)
    step = torch.log1p(wide.abs().max() / unit).clamp(min=1e-300) / 127
    return (wide.sign() * torch.expm1((torch.log1p(wide.abs() / unit) / step).round() * step) * unit).to(values.dtype)


def small_floats(values: torch.Tensor) -> torch.Tensor:
    """8 bits: a sign, three of exponent and four of mantissa, times a scale of the tensor."""
    wide = values.double()
    scale = wide.abs().max().clamp(min=1e-300) / 2.0**3
    exponent = (wide / scale).abs().clamp(min=2.0**-4).log2().floor()
    step = scale * torch.exp2(exponent - 4)
    return ((wide / step).round() * step).to(values.dtype)


EIGHT_BITS = whole_numbers(8, 32)
SIXTEEN_BITS = whole_numbers(16, 64)
THIRTY_TWO_BITS = whole_numbers(32, 64)


class NarrowLinks:
    """Stand-ins for collectives that send codes, and leave the rank's own part as it is."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._sent: list[torch.Tensor] = []
        self._whole = {name: getattr(dist, name) for name in NAMES}

    def _coded(self, values: torch.Tensor) -> torch.Tensor:
        is_real = values.is_floating_point() and values.dtype.itemsize >= 2 and values.numel() > 1
        return self._code(values).contiguous() if is_real else values.contiguous()

    def all_gather(self, outs: Sequence[torch.Tensor], own: torch.Tensor, group: Any = None) -> None:
        """The own tensor is whole."""
        self._whole["all_gather"](outs, self._coded(own), group=group)
        outs[dist.get_rank(group)].copy_(own)

    def all_gather_into_tensor(
        self, out: torch.Tensor, own: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Done | None:
        """The own tensor is whole."""
        self._whole["all_gather_into_tensor"](out, self._coded(own), group=group)
        out.view(dist.get_world_size(group), -1)[dist.get_rank(group)].copy_(own.reshape(-1))
        return Done() if async_op else None

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        """Adds codes of the others' tensors, in float64."""
        if op != dist.ReduceOp.SUM or not tensor.is_floating_point():
            self._whole["all_reduce"](tensor, op, group=group)
            return
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        self.all_gather(parts, tensor.clone(), group)
        tensor.copy_(torch.stack([part.double() for part in parts]).sum(0))

    def reduce(self, tensor: torch.Tensor, dst: int = 0, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        """An `all_reduce` for one rank."""
        total = tensor.clone()
        self.all_reduce(total, op, group)
        if dist.get_rank() == dst:
            tensor.copy_(total)

    def reduce_scatter_tensor(
        self, out: torch.Tensor, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None
    ) -> None:
        """An `all_reduce` for the own part of each rank."""
        total = tensor.clone()
        self.all_reduce(total, op, group)
        out.copy_(total.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(out))

    def all_to_all_single(
        self,
        out: torch.Tensor,
        sent: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
    ) -> None:
        """The piece for the rank itself is whole."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        pieces = sent.split(list(input_split_sizes)) if input_split_sizes else sent.chunk(size)
        coded = torch.cat([self._coded(piece) for piece in pieces])
        self._whole["all_to_all_single"](out, coded, output_split_sizes, input_split_sizes, group=group)
        (out.split(list(output_split_sizes)) if output_split_sizes else out.chunk(size))[rank].copy_(pieces[rank])

    def batch_isend_irecv(self, ops: Sequence[dist.P2POp]) -> Any:
        """What is sent is coded."""
        whole = []
        for op in ops:
            if op.op is dist.isend:
                self._sent.append(self._coded(op.tensor).clone())  # until it has arrived
                op = dist.P2POp(dist.isend, self._sent[-1], op.peer, op.group, op.tag)
            whole.append(op)
        return self._whole["batch_isend_irecv"](whole)


NAMES = tuple(name for name in vars(NarrowLinks) if not name.startswith("_"))


@contextmanager
def narrow_links(code: Code) -> Iterator[None]:
    """Within it, collectives send codes."""
    links = NarrowLinks(code)
    with mock.patch.multiple(dist, **{name: getattr(links, name) for name in NAMES}):
        yield


def _call(name: str, code: Code, *args: Any) -> Any:
    problem = find_problem(name)
    reference = importlib.import_module(f"pkb_gym.problems.{problem.category}.{problem.folder}.reference")
    with narrow_links(code):
        return reference.solution(*args)


def with_narrow_links(name: str, code: Code) -> Callable[..., Any]:
    """A problem's reference that sends codes."""
    return functools.partial(_call, name, code)
