"""Another right arithmetic of a solution: orders of sums, roundings on the way and choices among ties, by a seed.

Operators of torch are intercepted on their way to the CPU. Whatever is drawn is what a right kernel may do: a sum in
another order, in parts or exactly; a product over parts of its inner dimension, whose sums may be rounded to the dtype,
as libraries do; functions some units in the last place off, as fast ones are; equal elements in any order.

Imports nothing of the package: its text becomes part of candidates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

MAX_PARTS = 5
"""Parts of a sum."""

ULPS = 2
"""Error of a fast function in float32, in units of the last place."""

MAX_PRODUCTS = 4
"""Products that are kept for additions behind them."""

HALF = (torch.bfloat16, torch.float16)

Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}
"""Operator, whatever its overload -> method that computes it otherwise, or gives NotImplemented."""


def handles(*operators: Any) -> Callable[[Handler], Handler]:
    """Registers a method of `OtherArithmetic`; its arguments are those of the operator, behind the overload's name."""

    def register(method: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operators, method))
        return method

    return register


class OperatorMode(TorchDispatchMode):
    """A mode that computes some operators itself, those that write to `out` or in place too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to skip it would import it, which takes seconds."""
        return False

    def handler_of(self, operator: Any, args: Sequence[Any]) -> Handler | None:
        """The method that computes an operator, given the mode, the overload and the arguments; None for torch's own.

        It may give NotImplemented, which leaves the operator to torch as well.
        """
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Computes one operator."""
        kwargs = dict(kwargs or {})
        handler = self.handler_of(func.overloadpacket, args)
        if handler is None:
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        result = handler(self, func, *args, **kwargs)
        if result is NotImplemented:
            return func(*args, **kwargs, **({} if out is None else {"out": out}))
        if func._schema.name.endswith("_"):
            return result if result is args[0] else args[0].copy_(result)
        return result if out is None else out.copy_(result)


class OtherArithmetic(OperatorMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """A mode in which operators compute otherwise, and no less rightly.

    Args:
        seed: Seed of all choices; equal seeds compute equally.
        fast_functions: Whether functions and quotients may be some units in the last place off.
        narrow_parts: Whether sums over parts of a product's inner dimension may be rounded to 16 bits.
        narrow_factors: Whether the factors of float32 products may be rounded to bfloat16.
        unstable: Whether sorts that are declared stable leave equal elements in any order too.
    """

    def __init__(
        self,
        seed: int,
        *,
        fast_functions: bool = True,
        narrow_parts: bool = False,
        narrow_factors: bool = False,
        unstable: bool = False,
    ) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._fast_functions, self._unstable = fast_functions, unstable
        self._narrow_parts, self._narrow_factors = narrow_parts, narrow_factors
        self._products: list[tuple[torch.Tensor, int, torch.Tensor]] = []

    def handler_of(self, operator: Any, args: Sequence[Any]) -> Handler | None:
        """The method that `handles` has registered."""
        return HANDLERS.get(operator)

    def _permutation(self, length: int) -> torch.Tensor:
        return torch.randperm(length, generator=self._generator)

    def _parts(self, length: int) -> list[torch.Tensor]:
        """All numbers below `length`, in a random order and in random parts."""
        cuts = sorted(self._random.randint(0, length) for _ in range(self._random.randrange(MAX_PARTS)))
        parts = self._permutation(length).tensor_split(cuts)
        return [part for part in parts if len(part)] or list(parts[:1])

    def _sum_last(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the last dimension, in the dtype, which is not of 16 bits."""
        if self._random.random() < 0.25:
            return x.to(torch.complex128 if x.is_complex() else torch.float64).sum(-1).to(x.dtype)
        parts = [x[..., part].sum(-1) for part in self._parts(x.shape[-1])]
        return sum(parts[1:], parts[0])

    def _sum_dims(self, x: torch.Tensor, dims: Sequence[int] | int | None, keep: bool) -> torch.Tensor:
        places = list(range(x.dim())) if dims is None else [dims] if isinstance(dims, int) else list(dims)
        places = sorted({place % max(1, x.dim()) for place in places or range(x.dim())})
        if not x.dim():
            return x.clone()
        rest = [place for place in range(x.dim()) if place not in places]
        shape = [x.shape[place] for place in rest]
        count = 1
        for place in places:
            count *= x.shape[place]
        total = self._sum_last(x.permute(*rest, *places).reshape(*shape, count))
        if keep:
            total = total.view([1 if place in places else x.shape[place] for place in range(x.dim())])
        return total

    @handles(aten.sum)
    def _sum(self, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        result = dtype or x.dtype
        if not (result.is_floating_point or result.is_complex):
            return NotImplemented
        return self._sum_dims(x.to(wider(result)), dim, keepdim).to(result)

    @handles(aten.mean)
    def _mean(self, func: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        result = dtype or x.dtype
        if not result.is_floating_point:
            return NotImplemented
        total = self._sum_dims(x.to(wider(result)), dim, keepdim)
        count = x.numel() / max(1, total.numel())
        return (total / count if self._random.random() < 0.5 else total * (1 / count)).to(result)

    @handles(aten.linalg_vector_norm)
    def _norm(
        self, func: Any, x: torch.Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Any:  # torch's name
        if ord not in (1, 2) or not x.is_floating_point() or not x.numel():
            return NotImplemented
        wide = x.to(wider(dtype or x.dtype))
        total = self._sum_dims(wide.abs() if ord == 1 else wide * wide, dim, keepdim)
        return (total if ord == 1 else total.sqrt()).to(dtype or x.dtype)

    @handles(aten.cumsum)
    def _cumsum(self, func: Any, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        """Exactly, or by doubling steps as on GPUs, whose partial sums are rounded to the dtype."""
        result = dtype or x.dtype
        if not result.is_floating_point or not x.numel():
            return NotImplemented
        if self._random.random() < 0.5:
            return x.double().cumsum(dim).to(result)
        sums, step = x.to(result), 1
        while step < x.shape[dim]:
            head, left, right = sums.narrow(dim, 0, step), sums.narrow(dim, step, x.shape[dim] - step), sums
            sums = torch.cat([head, left + right.narrow(dim, 0, x.shape[dim] - step)], dim)
            step *= 2
        return sums

    def _matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The product at 32 or 64 bits a number, over parts of the inner dimension."""
        wide = wider(a.dtype)
        if self._narrow_factors and a.dtype == torch.float32 and self._random.random() < 0.7:
            a, b = a.bfloat16(), b.bfloat16()
        if self._random.random() < 0.25:
            exact = torch.complex128 if a.is_complex() else torch.float64
            return (a.to(exact) @ b.to(exact)).to(wide)
        rounded = a.dtype if self._narrow_parts and self._random.random() < 0.3 else wide
        total = None
        for part in self._parts(a.shape[-1]):
            product = (a[..., part].to(wide) @ b[..., part, :].to(wide)).to(rounded).to(wide)
            total = product if total is None else (total + product).to(rounded).to(wide)
        assert total is not None
        return total

    @handles(aten.mm, aten.bmm)
    def _mm(self, func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self._matmul(a, b).to(a.dtype) if floating(a) else NotImplemented

    @handles(aten.mv, aten.dot)
    def _mv(self, func: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self._matmul(a, b[:, None])[..., 0].to(a.dtype) if floating(a) else NotImplemented

    @handles(aten.addmm, aten.baddbmm, aten.baddbmm_, aten.addmm_)
    def _addmm(
        self, func: Any, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Any:
        if not floating(a):
            return NotImplemented
        product = self._matmul(a, b)
        return (alpha * product if not beta else beta * c.to(product.dtype) + alpha * product).to(c.dtype)

    @handles(aten.convolution)
    def _convolution(self, func: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> Any:
        """Exactly, or over parts of the input channels."""
        transposed, groups = rest[3], rest[5]
        if transposed or not x.is_floating_point():
            return NotImplemented
        if groups != 1 or self._random.random() < 0.5:
            exact = [None if tensor is None else tensor.double() for tensor in (x, weight, bias)]
            return func(*exact, *rest).to(x.dtype)
        wide = wider(x.dtype)
        parts = [func(x[:, p].to(wide), weight[:, p].to(wide), None, *rest) for p in self._parts(x.shape[1])]
        total = sum(parts[1:], parts[0])
        return (total if bias is None else total + bias.to(wide).view(-1, *[1] * (x.dim() - 2))).to(x.dtype)

    @handles(aten._fft_r2c, aten._fft_c2c, aten._fft_c2r)
    def _fft(self, func: Any, x: torch.Tensor, *rest: Any) -> Any:
        narrow = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(x.dtype)
        if narrow is None or self._random.random() < 0.3:
            return NotImplemented
        result = func(x.to(narrow), *rest)
        return result.to(torch.complex64 if result.is_complex() else torch.float32)

    @handles(aten._softmax, aten._log_softmax, aten.logsumexp)
    def _softmaxes(self, func: Any, x: torch.Tensor, dim: Any, keepdim: bool = False) -> Any:
        """With its sum in another order; inside at 32 or 64 bits."""
        if not x.is_floating_point() or not x.numel():
            return NotImplemented
        wide = x.to(wider(x.dtype))
        largest = wide.amax(dim, keepdim=True)
        largest = largest.masked_fill(largest.isinf(), 0)
        powers = self._inexact((wide - largest).exp(), (wide - largest).double().exp())
        total, other = self._sum_dims(powers, dim, True), self._random.random() < 0.5
        if func.overloadpacket is aten._softmax:
            return (powers / total if other else powers * total.reciprocal()).to(x.dtype)
        if func.overloadpacket is aten._log_softmax:
            return (wide - largest - total.log() if other else wide - (largest + total.log())).to(x.dtype)
        result = (total.log() + largest).to(x.dtype)
        return result if keepdim else result.squeeze(tuple(dim) if isinstance(dim, list | tuple) else dim)

    @handles(aten._scaled_dot_product_flash_attention_for_cpu)
    def _attention(
        self,
        func: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        """By whole rows, whose weights may be rounded to the dtype before they are divided by their sum, or behind."""
        if is_causal or attn_mask is not None or not k.shape[-2]:
            return NotImplemented
        scores = self._matmul(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        largest = scores.amax(-1, keepdim=True)
        powers = self._inexact((scores - largest).exp(), (scores - largest).double().exp())
        total = self._sum_dims(powers, -1, True)
        if self._random.random() < 0.5:
            out = self._matmul((powers / total).to(q.dtype), v)
        else:
            out = self._matmul(powers.to(q.dtype), v) / total
        return out.to(q.dtype), (largest + total.log()).squeeze(-1)

    def _inexact(self, result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Results of a fast function: off by units in the last place, but where they are exact or at an end."""
        if result.dtype == torch.float64 or not self._fast_functions:
            return result
        units = torch.randint(-ULPS, ULPS + 1, result.shape, generator=self._generator)
        moved = result * (1 + units * torch.finfo(result.dtype).eps)
        return torch.where((result.double() == exact) | (moved.abs() > 1) & (result.abs() <= 1), result, moved)

    @handles(
        *(aten.exp, aten.log, aten.log1p, aten.expm1, aten.sigmoid, aten.tanh, aten.rsqrt, aten.sqrt, aten.reciprocal),
        *(aten.silu, aten.gelu, aten.softplus, aten.erf, aten.sin, aten.cos, aten.pow, aten.div, aten.logaddexp),
        *(aten.exp_, aten.log_, aten.sigmoid_, aten.tanh_, aten.rsqrt_, aten.sqrt_, aten.div_, aten.pow_, aten.silu_),
    )
    def _function(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Some units in the last place of float32 off, then rounded."""
        tensors = tensors_of(*args)
        if (
            not self._fast_functions
            or kwargs.get("rounding_mode")
            or not tensors
            or not all(tensor.is_floating_point() for tensor in tensors)
        ):
            return NotImplemented
        dtype = torch.result_type(*args[:2]) if len(tensors) > 1 else tensors[0].dtype
        if dtype not in (*HALF, torch.float32):
            return NotImplemented
        plain = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
        single, double = (
            plain(*(arg.to(wide) if isinstance(arg, torch.Tensor) else arg for arg in args), **kwargs)
            for wide in (torch.float32, torch.float64)
        )
        return self._inexact(single, double).to(dtype)

    @handles(aten.mul, aten.mul_)
    def _mul(self, func: Any, a: Any, b: Any) -> Any:
        """In 16 bits as `_mixed`; a product of float32 is kept exactly for an addition that follows."""
        if torch.result_type(a, b) in HALF:
            return self._mixed(aten.mul, a, b)
        if not all(tensor.dtype == torch.float32 for tensor in tensors_of(a, b)):
            return NotImplemented
        result = func(a, b)
        exact = aten.mul(*(arg.double() if isinstance(arg, torch.Tensor) else arg for arg in (a, b)))
        self._products = [*self._products[1 - MAX_PRODUCTS :], (result, result._version, exact)]
        return result

    def _mixed(self, plain: Any, a: Any, b: Any, **factor: float) -> Any:
        """A result of 16 bits from operands of several dtypes, or with a factor: each is rounded first, or not."""
        dtype = torch.result_type(a, b)
        if self._random.random() < 0.5 or not all(isinstance(x, torch.Tensor) for x in (a, b)):
            a, b = (x.float() if isinstance(x, torch.Tensor) else x for x in (a, b))
        else:
            a, b = a.to(dtype).float(), b.to(dtype).float()
        if self._random.random() < 0.5:
            factor = {name: torch.tensor(value, dtype=dtype).item() for name, value in factor.items()}
        return plain(a, b, **factor).to(dtype)

    @handles(aten.add, aten.add_, aten.sub, aten.sub_)
    def _add(self, func: Any, a: Any, b: Any, *, alpha: float = 1) -> Any:
        """In 16 bits as `_mixed`; in float32 fused with a product that is one of its operands."""
        plain = aten.sub if func.overloadpacket in (aten.sub, aten.sub_) else aten.add
        if torch.result_type(a, b) in HALF:
            return self._mixed(plain, a, b, alpha=alpha)
        found = [self._exact(value) for value in (a, b)]
        if all(exact is None for exact in found) or self._random.random() < 0.5:
            return NotImplemented
        if not all(tensor.dtype == torch.float32 for tensor in tensors_of(a, b)):
            return NotImplemented
        left, right = (value if exact is None else exact for value, exact in zip((a, b), found, strict=True))
        if None not in found:  # only one of two products is fused
            right = b
        return plain(*(x.double() if isinstance(x, torch.Tensor) else x for x in (left, right)), alpha=alpha).float()

    @handles(aten.addcmul, aten.addcmul_)
    def _addcmul(self, func: Any, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1) -> Any:
        """Fused or not; in 16 bits with a factor that is rounded first, or not."""
        if not c.is_floating_point() or torch.float64 in (c.dtype, a.dtype, b.dtype):
            return NotImplemented
        if c.dtype in HALF and self._random.random() < 0.5:
            value = torch.tensor(value, dtype=c.dtype).item()
        if self._random.random() < 0.5:
            return (c.double() + value * a.double() * b.double()).to(torch.float32).to(c.dtype)
        return (c.float() + value * (a.float() * b.float())).to(c.dtype)

    def _exact(self, value: Any) -> torch.Tensor | None:
        """The exact product that a tensor holds, rounded; None where it holds none, or no more."""
        kept = [exact for product, version, exact in self._products if product is value and version == value._version]
        return kept[-1] if kept else None

    @handles(aten.topk)
    def _topk(
        self, func: Any, x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
    ) -> Any:
        """Equal elements are chosen, and come, in any order."""
        if not x.dim():
            return NotImplemented
        order = self._permutation(x.shape[dim])
        values, indices = func(x.index_select(dim, order), k, dim, largest, is_sorted)
        return values, order[indices]

    @handles(aten.sort)
    def _sort(self, func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Equal elements come in any order, unless the sort is stable."""
        if not x.dim() or (kwargs.get("stable") and not self._unstable):
            return NotImplemented
        dim = kwargs.get("dim", args[0] if args else -1)
        descending = kwargs.get("descending", args[1] if len(args) > 1 else False)
        order = self._permutation(x.shape[dim])
        values, indices = torch.sort(x.index_select(dim, order), dim=dim, descending=descending, stable=True)
        return values, order[indices]

    @handles(aten.index_add, aten.index_add_)
    def _index_add(
        self, func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
    ) -> Any:
        if alpha != 1:
            return NotImplemented
        rows = index.view([-1 if place == dim % x.dim() else 1 for place in range(x.dim())])
        return self._scatter_add(func, x, dim, rows.expand_as(source), source)

    @handles(aten.scatter_add, aten.scatter_add_)
    def _scatter_add(self, func: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
        """In another order: at once, or one by one with as many roundings, as by atomic additions."""
        if not x.is_floating_point() or not x.dim():
            return NotImplemented
        order = self._permutation(index.shape[dim])
        index, source = index.index_select(dim, order), source.index_select(dim, order)
        if self._random.random() < 0.5:
            wide = x.to(wider(x.dtype))
            return wide.scatter_add(dim, index, source.to(wide.dtype)).to(x.dtype)
        result = x.clone()
        for place in range(index.shape[dim]):
            result.scatter_add_(dim, index.narrow(dim, place, 1), source.narrow(dim, place, 1))
        return result


def tensors_of(*values: Any) -> list[torch.Tensor]:
    """The tensors among some values."""
    return [value for value in values if isinstance(value, torch.Tensor)]


def wider(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums of a dtype are taken."""
    return torch.float32 if dtype in HALF else dtype


def floating(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers are rounded."""
    return tensor.is_floating_point() or tensor.is_complex()
