# ruff: noqa: ANN401  # what a dispatched operation takes and gives can be anything
"""Right solutions of the baseline's accuracy: the reference itself, with its operations done otherwise.

`exact` stands for accumulators that are wider than needed, `reordered` for sums in another order, with float32
accumulators, pieces of their own and ranks from last to first. `wider` is the reference on float32 copies of its
arguments, rounded once at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import find_problem
from tests.problems.finer_runs import evaluated_in_float32, has_float32_answer
from tests.problems.support import MadeInRanks

Solution: TypeAlias = Callable[..., Any]
Add: TypeAlias = Callable[[list[torch.Tensor]], torch.Tensor]

aten = torch.ops.aten
NARROW = (torch.bfloat16, torch.float16, torch.float32)

SUMS = {
    *(aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.sum, aten.mean, aten.cumsum, aten.logsumexp, aten.convolution),
    *(aten._softmax, aten._log_softmax, aten.linalg_vector_norm, aten.dot, aten.mv, aten._fft_r2c, aten._fft_c2r),
    *(aten._fft_c2c, aten.convolution_backward, aten._softmax_backward_data, aten._log_softmax_backward_data),
}
"""Operations that add many terms."""

IN_PLACE = {
    aten.addmm_: aten.addmm,
    aten.baddbmm_: aten.baddbmm,
    aten.addcmul_: aten.addcmul,
    aten.index_add_: aten.index_add,
    aten.scatter_add_: aten.scatter_add,
}
"""Their forms that overwrite the first argument, and those that do not."""


FLOAT32_RESULT = ("LoadBalancingLoss",)
"""Problems with a float32 result of 16-bit inputs, rounded on the way to it."""

ROUNDING_ON_THE_WAY = ("TileParallelVAEDecode",)
"""Problems with an output that is bfloat16 whatever the inputs' dtype, and rounded on the way to it."""


def honest_variants(problem: Problem) -> Mapping[str, Solution | None]:
    """Name -> solution; None stands for the reference itself."""
    variants: dict[str, Solution | None] = {
        "baseline": None,
        "exact": MadeInRanks(_exact, problem.name),
        "reordered": MadeInRanks(_reordered, problem.name),
    }
    if has_float32_answer(problem) or problem.name in FLOAT32_RESULT:
        variants["wider"] = evaluated_in_float32(problem)
    elif problem.name in ROUNDING_ON_THE_WAY:
        variants["wider"] = MadeInRanks(_unrounded, problem.name)
    return variants


class Exact(TorchDispatchMode):
    """Adds in float64 and rounds once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = dict(kwargs or {})
        if func.overloadpacket in IN_PLACE and _is_narrow(args[0]):
            return args[0].copy_(_in_float64(IN_PLACE[func.overloadpacket], args, kwargs))
        result = func(*args, **kwargs)
        if func.overloadpacket not in SUMS:
            return result
        if "out" in kwargs:
            del kwargs["out"]
            return result.copy_(_in_float64(func.overloadpacket, args, kwargs))
        return _rounded_as(result, _in_float64(func, args, kwargs))


class Unrounded(TorchDispatchMode):
    """Keeps in float32 what is rounded to bfloat16, and what is made to receive it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") == torch.bfloat16:
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


class Reordered(TorchDispatchMode):
    """Adds products and terms from last to first, in pieces of about the square root of their number, in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        result = func(*args, **(kwargs or {}))
        packet, dims = func.overloadpacket, None
        if packet in (aten.mm, aten.bmm) and _is_narrow(result):
            return _product(args[0], args[1], result.dtype)
        if packet is aten.addmm and not kwargs and _is_narrow(result):
            return (args[0].float() + _product(args[1], args[2], torch.float32)).to(result.dtype)
        if packet in (aten.sum, aten.mean) and _is_narrow(result) and _is_narrow(args[0]):
            dims = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
            total = args[0].float()
            for dim in sorted((dim % max(1, total.dim()) for dim in dims), reverse=True):
                total = _summed(total, dim)
            count = args[0].numel() / max(1, total.numel()) if packet is aten.mean else 1
            return (total / count).to(result.dtype).view_as(result)
        return result


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in NARROW


def _summed(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum over one dimension, from the last element on, in pieces."""
    pieces = values.flip(dim).split(max(1, math.isqrt(values.shape[dim])), dim)
    total = torch.zeros_like(values.select(dim, 0)) if values.shape[dim] else values.sum(dim)
    for piece in pieces if values.shape[dim] else ():
        total = total + piece.sum(dim)
    return total


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A matrix product whose inner dimension is walked from its end, in pieces."""
    inner = a.shape[-1]
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)
    for end in range(inner, 0, -max(1, math.isqrt(inner))):
        begin = max(0, end - max(1, math.isqrt(inner)))
        total = total + a[..., begin:end].float() @ b[..., begin:end, :].float()
    return total.to(dtype)


def _in_float64(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The operation on float64 copies of its arguments; what asks for a dtype gets float64."""

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype in NARROW:
                return value.double()
            return value.to(torch.complex128) if value.dtype == torch.complex64 else value
        return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value

    return func(*tree_map(wide, args), **tree_map(wide, dict(kwargs)))


def _rounded_as(result: Any, wide: Any) -> Any:
    """Wide results in the dtypes of the operation's own."""
    if isinstance(result, tuple | list):
        return type(result)(_rounded_as(one, other) for one, other in zip(result, wide, strict=True))
    return wide.to(result.dtype) if isinstance(result, torch.Tensor) else wide


def _exact_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).double().sum(0).to(parts[0].dtype)


def _reversed_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    """From the last rank to the first, rounded at each step, as a ring does."""
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    return total


def _exact(name: str) -> Solution:
    return _with(find_problem(name), Exact, _exact_sum)


def _reordered(name: str) -> Solution:
    return _with(find_problem(name), Reordered, _reversed_sum)


def _unrounded(name: str) -> Solution:
    inner = _with(find_problem(name), Unrounded, _reversed_sum)
    return lambda *args: inner(*args).to(torch.bfloat16)


def _with(problem: Problem, mode: type[TorchDispatchMode], add: Add) -> Solution:
    """The reference under a mode, with sums over ranks as `add` makes them."""
    name = f"pkb_gym.problems.{problem.category}.{problem.folder}.reference"

    def solution(*args: Any) -> Any:
        with _ranks_added_by(add), mode():
            return importlib.import_module(name).solution(*args)

    return solution


class _Done:
    """The handle of a collective that has ended."""

    def wait(self) -> bool:
        """See `torch.distributed.Work`."""
        return True


@contextlib.contextmanager
def _ranks_added_by(add: Add) -> Iterator[None]:
    """Sums over ranks of floating numbers are gathered, and added by `add`."""
    own_all_reduce, own_reduce_scatter = dist.all_reduce, dist.reduce_scatter_tensor

    def gathered(tensor: torch.Tensor, group: Any) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return parts

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op != dist.ReduceOp.SUM or not tensor.is_floating_point():
            return own_all_reduce(tensor, op, group, async_op)
        tensor.copy_(add(gathered(tensor, group)))
        return _Done() if async_op else None

    def reduce_scatter(
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002  # torch's name
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if op != dist.ReduceOp.SUM or not input.is_floating_point():
            return own_reduce_scatter(output, input, op, group, async_op)
        total = add(gathered(input, group))
        output.copy_(total.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].view_as(output))
        return _Done() if async_op else None

    with (
        mock.patch.object(dist, "all_reduce", all_reduce),
        mock.patch.object(dist, "reduce_scatter_tensor", reduce_scatter),
    ):
        yield
