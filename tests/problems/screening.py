"""References whose products and sums leave part of their addends out: what a screening kernel computes.

Operators of torch are intercepted on their way to the CPU, so that every reduction of a reference is screened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from pkb_gym.authoring import wrong_collectives, wrong_inputs
from pkb_gym.authoring.other_arithmetic import OperatorMode
from pkb_gym.engine.problem import Problem
from tests.problems.wrong_solutions import reference_of

aten = torch.ops.aten

LEFT_OUT = 0.25
"""Share of the addends that a screening leaves out."""

EXACT = 0.05
"""Share of the elements of a product, the largest by the screening, that are computed whole."""

MIN_ADDENDS = 4
"""Sums of fewer addends are taken whole."""


def with_largest_exact(near: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The screened product, its largest elements replaced by exact ones."""
    if near.numel() < 2:
        return near
    count = max(1, round(EXACT * near.numel()))
    threshold = near.abs().flatten().kthvalue(near.numel() + 1 - count).values
    return exact.where(near.abs() >= threshold, near)


class Screening:
    """A screening that leaves out nothing: what the interception of operators changes by itself."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The product (..., m, n) of (..., m, k) and (..., k, n) in float32 or float64, k at least `MIN_ADDENDS`."""
        return a @ b

    def addends(self, x: torch.Tensor) -> torch.Tensor:
        """The addends of a sum over the last dimension, zeros among them; scaled for those that are left out."""
        return x

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        """The addend of one rank in a sum over ranks."""
        return x


class FewerChannels(Screening):
    """Three quarters of the channels find the largest elements, which are then computed whole."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        read = a.shape[-1] - int(LEFT_OUT * a.shape[-1])
        return with_largest_exact(a[..., :read] @ b[..., :read, :], a @ b)

    def addends(self, x: torch.Tensor) -> torch.Tensor:
        read = x.shape[-1] - int(LEFT_OUT * x.shape[-1])
        return x.where(torch.arange(x.shape[-1]) < read, 0) * (x.shape[-1] / max(1, read))

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        return self.addends(x) if x.dim() else x


class LowPrecision(Screening):
    """8-bit products of all channels find the largest elements, which are then computed whole."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return with_largest_exact(wrong_inputs.int8_rows(a) @ wrong_inputs.int8_rows(b.mT).mT, a @ b)

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        return wrong_inputs.int8_rows(x)


class LargeAddends(Screening):
    """The smallest factors of each row of a product are skipped, and the smallest addends of each rank."""

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.sent(a) @ b

    def sent(self, x: torch.Tensor) -> torch.Tensor:
        if not x.dim() or not x.numel():
            return x
        skipped = x.abs().argsort(dim=-1)[..., : int(LEFT_OUT * x.shape[-1])]
        return x.scatter(-1, skipped, 0)


WHOLE = Screening()

SCREENINGS = {
    "three quarters of the channels": FewerChannels(),
    "low precision": LowPrecision(),
    "large addends alone": LargeAddends(),
}


class Screened(OperatorMode):
    """A mode in which reductions are screened.

    Args:
        screening: Way to leave out work.
    """

    def __init__(self, screening: Screening) -> None:
        super().__init__()
        self._screening = screening

    def handler_of(self, operator: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
        return OPERATORS[operator] if operator in OPERATORS and rounded(args[0]) else None

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(a.dtype, torch.float32)
        a, b = a.to(wide), b.to(wide)
        return self._screening.product(a, b) if a.shape[-1] >= MIN_ADDENDS and a.numel() and b.numel() else a @ b

    def total(self, x: torch.Tensor, dims: Any, keep: bool) -> torch.Tensor:
        """The sum over some dimensions, over all of them by default."""
        places = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
        places = sorted(place % max(1, x.dim()) for place in places)
        count = prod(x.shape[place] for place in places)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if count < MIN_ADDENDS or not x.numel():
            return wide.sum(dims, keepdim=keep)
        rest = [place for place in range(x.dim()) if place not in places]
        rows = wide.permute(*rest, *places).reshape(*(x.shape[place] for place in rest), count)
        total = self._screening.addends(rows).sum(-1)
        return total.view([1 if place in places else x.shape[place] for place in range(x.dim())]) if keep else total

    def mm(self, func: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.product(a, b).to(a.dtype)

    def mv(self, func: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.product(a if a.dim() == 2 else a[None], b[:, None])[:, 0].view(a.shape[:-1]).to(a.dtype)

    def addmm(self, func: Any, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        product = alpha * self.product(a, b)
        return (product if not beta else beta * c + product).to(c.dtype)

    def convolution(self, func: Any, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        """The weights of one output are the addends of a row."""
        rows = weight.flatten(1)
        read = self._screening.product(rows, torch.eye(rows.shape[1], dtype=rows.dtype))
        return func(x, read.view_as(weight), *rest)

    def sum(self, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return self.total(x, dim, keepdim).to(dtype or x.dtype)

    def mean(self, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        total = self.total(x, dim, keepdim)
        return (total * (total.numel() / max(1, x.numel()))).to(dtype or x.dtype)

    def norm(
        self, func: Any, x: torch.Tensor, p: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Any:
        if p in (0, torch.inf, -torch.inf):
            return func(x, p, dim, keepdim, dtype=dtype)
        powers = x.to(torch.promote_types(x.dtype, torch.float32)).abs().pow(p)
        return self.total(powers, dim, keepdim).pow(1 / p).to(dtype or x.dtype)

    def softmax(self, func: Any, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        return self.log_softmax(func, x, dim, half_to_float).float().exp().to(x.dtype)

    def log_softmax(self, func: Any, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
        return (x.to(torch.promote_types(x.dtype, torch.float32)) - self.logsumexp(func, x, dim, True)).to(x.dtype)

    def logsumexp(self, func: Any, x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
        largest = x.amax(dim, keepdim=True)
        largest = largest.where(largest.isfinite(), 0)
        total = self.total((x - largest).to(torch.promote_types(x.dtype, torch.float32)).exp(), dim, True).log()
        total = total + largest
        return total if keepdim else total.sum(dim)

    def attention(self, func: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Two results, of which the second, the logarithms of the sums, serves the gradient alone."""
        assert not any(args) and not any(value for name, value in kwargs.items() if name != "scale"), (args, kwargs)
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
        scores = self.product(q.float() * (kwargs.get("scale") or q.shape[-1] ** -0.5), k.mT)
        shares = self.softmax(func, scores, -1)
        return self.product(shares, v).to(q.dtype), self.logsumexp(func, scores, -1)

    def transform(self, func: Any, x: torch.Tensor, dims: Sequence[int], *rest: Any) -> torch.Tensor:
        """A Fourier transform along some dimensions, the last of which is screened."""
        rows = x.movedim(dims[-1], -1)
        parts = torch.view_as_real(rows).unbind(-1) if x.is_complex() else [rows]
        kept = [self._screening.addends(part) for part in parts]
        return func((torch.complex(*kept) if x.is_complex() else kept[0]).movedim(-1, dims[-1]), dims, *rest)

    def scatter(self, func: Any, x: torch.Tensor, dim: int, index: Any, source: torch.Tensor, **kwargs: Any) -> Any:
        """Sums of rows: of those that are added some are left out."""
        kept = self._screening.addends(source.movedim(dim, -1)).movedim(-1, dim).to(source.dtype)
        return func(x, dim, index, kept, **kwargs)


OPERATORS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.mm, aten.bmm), Screened.mm),
    **dict.fromkeys((aten.mv, aten.dot), Screened.mv),
    **dict.fromkeys((aten.addmm, aten.baddbmm, aten.addmm_, aten.baddbmm_), Screened.addmm),
    aten.convolution: Screened.convolution,
    aten.sum: Screened.sum,
    aten.mean: Screened.mean,
    aten.linalg_vector_norm: Screened.norm,
    aten._softmax: Screened.softmax,
    aten._log_softmax: Screened.log_softmax,
    aten.logsumexp: Screened.logsumexp,
    aten._scaled_dot_product_flash_attention_for_cpu: Screened.attention,
    **dict.fromkeys((aten._fft_r2c, aten._fft_c2c, aten._fft_c2r), Screened.transform),
    **dict.fromkeys((aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_), Screened.scatter),
}


def rounded(value: Any) -> bool:
    """Whether it is a tensor of rounded numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def screened_collective(name: str, screening: Screening) -> Callable[..., Any]:
    """A collective of torch.distributed whose sums over ranks are of screened addends."""
    original = getattr(dist, name)

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        operators = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, dist.ReduceOp.RedOpType)]
        if operators in ([], [dist.ReduceOp.SUM]):
            if name == "reduce_scatter_tensor":
                args = (screening.sent(args[0]), *args[1:])
            elif rounded(tensor):
                tensor.copy_(screening.sent(tensor))
        return original(tensor, *args, **kwargs)

    return call


def screened(problem: Problem, screening: Screening) -> Callable[..., Any]:
    """The reference with all of its reductions screened, those over ranks too."""

    def solution(*args: Any) -> Any:
        collectives = {name: screened_collective(name, screening) for name in wrong_collectives.REDUCTIONS}
        with mock.patch.multiple(dist, **collectives), Screened(screening):
            return reference_of(problem)(*args)

    return solution
