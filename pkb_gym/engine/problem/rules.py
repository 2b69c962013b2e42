"""Rules that distinguish a right output from a wrong one.

A rule marks the wrong elements of one output of one rank. It sees the baseline's output and every rank's inputs, so
that it can compute an exact answer, or a bound that follows from the data, itself. Rules are built without torch.

Tolerances are given for bfloat16 and shrink with the dtype (`DTYPE_SCALE`), so that float32 results are held to
float32 accuracy; `allclose` alone is fixed, since it reproduces the published benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.axes import Axes
    from pkb_gym.engine.problem.values import Value

DTYPE_SCALE = {"bfloat16": 1.0, "float16": 2.0**-2, "float32": 2.0**-10, "float64": 2.0**-36}
"""Factor on tolerances: about the ratio of unit roundoffs, with room for the order of long float32 sums."""

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""Half the distance between 1 and the next larger number."""

SMALLEST_FLOAT16 = 2.0**-24
"""The distance between float16 numbers next to 0, which is much of those that tensors of small values have."""


@dataclass(frozen=True)
class CheckContext:
    """The data that a rule may look at.

    Attributes:
        ax: Axes of this rank.
        expected: Output of the baseline, of the same shape and dtype as the judged one.
        args: Data arguments of every rank by name, as they were before the call: `args[rank][name]`.
        outputs: Baseline outputs of this rank by leaf name.
        candidate: Candidate outputs of this rank by leaf name, for rules that look at several together.
        leaf: Name of the judged leaf.
    """

    ax: Axes
    expected: torch.Tensor
    args: Sequence[Mapping[str, Value]]
    outputs: Mapping[str, torch.Tensor]
    candidate: Mapping[str, torch.Tensor]
    leaf: str

    @property
    def rank(self) -> int:
        """The rank whose output is judged."""
        return self.ax.r

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.ax.W

    @property
    def own(self) -> Mapping[str, Value]:
        """This rank's arguments."""
        return self.args[self.rank]

    def tensor(self, name: str, rank: int | None = None) -> torch.Tensor:
        """A tensor argument of a rank (this one by default)."""
        import torch

        value = self.args[self.rank if rank is None else rank][name]
        assert isinstance(value, torch.Tensor), name
        return value

    def tensors(self, name: str, rank: int) -> Sequence[torch.Tensor | None]:
        """A tensor list argument of a rank; None where the list holds none."""
        value = self.args[rank][name]
        assert isinstance(value, list), name
        return value


class Check(Protocol):
    """A rule for one output."""

    @property
    def batched(self) -> bool:
        """Whether `wrong` can be vectorised by `torch.vmap`: it asks for no value and makes no shape out of values."""

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent, with the tolerances of problems in this dtype."""

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements.

        Args:
            got: Output of the candidate; its shape and dtype are right.
            context: Baseline output, axes and arguments that the rule may use.

        Returns:
            Mask of the wrong elements: a bool tensor of the shape of `got`.
        """


@dataclass(frozen=True)
class exact:  # noqa: N801  # reads as a function where rules are declared
    """Every element equal; NaN equals NaN, -0.0 equals +0.0."""

    batched: ClassVar[bool] = True

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return "exact"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        return unequal(got, context.expected)


@dataclass(frozen=True)
class same_bits:  # noqa: N801
    """Every element equal bit for bit: NaN payloads and the sign of zero too; for results that are only moved."""

    batched: ClassVar[bool] = True

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return "same bits"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        return as_integers(got) != as_integers(context.expected)


@dataclass(frozen=True)
class close:  # noqa: N801
    """|got - expected| <= rtol |expected| + atol + atol_rms rms(expected), scaled by dtype.

    In float16, results one number apart are near enough even where numbers lie as far apart as next to 0.
    """

    batched: ClassVar[bool] = True

    rtol: float = 0.0
    atol: float = 0.0
    atol_rms: float = 0.0

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        parts = [("rtol", self.rtol), ("atol", self.atol), ("atol_rms", self.atol_rms)]
        given = ", ".join(f"{name}={value * DTYPE_SCALE[dtype]:.3g}" for name, value in parts if value)
        return f"close({given}, for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        import torch

        expected = wide(context.expected)
        scale = DTYPE_SCALE[context.ax.dtype]
        atol = self.atol * scale + (SMALLEST_FLOAT16 if context.expected.dtype == torch.float16 else 0.0)
        bound = self.rtol * scale * expected.abs() + atol + self.atol_rms * scale * rms(expected)
        return outside(wide(got), expected, bound)


@dataclass(frozen=True)
class allclose:  # noqa: N801
    """|got - expected| <= atol + rtol |expected| whatever the dtype, as `torch.allclose`: the published rule."""

    batched: ClassVar[bool] = True

    rtol: float = 1e-2
    atol: float = 1e-2

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return f"allclose(rtol={self.rtol:g}, atol={self.atol:g})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        expected = wide(context.expected)
        return outside(wide(got), expected, self.atol + self.rtol * expected.abs())


@dataclass(frozen=True)
class rows_close:  # noqa: N801
    """||got - expected|| <= rel ||expected|| for each row (last dimension), scaled by dtype; a bad row is all wrong."""

    batched: ClassVar[bool] = True

    rel: float

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        return f"{type(self).__name__}(rel={self.rel * DTYPE_SCALE[dtype]:.3g}, for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        return self.beyond(1.0, got, context)

    def beyond(self, factor: float, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the elements of rows whose error is over so many times what is right."""
        import torch

        expected = wide(context.expected)
        size = self.size(torch.linalg.vector_norm(expected, dim=-1, keepdim=True))
        bad = far(wide(got), expected, factor * self.rel * DTYPE_SCALE[context.ax.dtype] * size, dim=-1)
        return bad.expand(got.shape)

    def size(self, norms: torch.Tensor) -> torch.Tensor:
        """The norm that each row's error is held to.

        Args:
            norms: Norms of the expected rows, with a last dimension of 1.
        """
        return norms


@dataclass(frozen=True)
class norm_close:  # noqa: N801
    """||got - expected|| <= rel ||expected|| over the whole output, scaled by dtype; all is wrong or nothing."""

    batched: ClassVar[bool] = True

    rel: float

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        return f"norm_close(rel={self.rel * DTYPE_SCALE[dtype]:.3g}, for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        import torch

        expected = wide(context.expected)
        norm = torch.linalg.vector_norm(expected)
        return far(wide(got), expected, self.rel * DTYPE_SCALE[context.ax.dtype] * norm).expand(got.shape)


@dataclass(frozen=True)
class within:  # noqa: N801
    """|got - exact| <= bound, where `compute(context)` gives both tensors from the inputs of all ranks.

    For results whose error bound follows from the data, such as sums over ranks. `compute` is a module-level function
    of the problem and must scale its bound by dtype itself (`UNIT_ROUNDOFF`). `batched` as in `Check`.
    """

    compute: Callable[[CheckContext], tuple[torch.Tensor, torch.Tensor]]
    description: str
    batched: bool = True

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return self.description

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        expected, bound = self.compute(context)
        return outside(wide(got), expected, bound)


@dataclass(frozen=True)
class rule:  # noqa: N801
    """A problem's own rule: `mark(got, context)` returns the bool tensor of wrong elements; `batched` as in `Check`."""

    mark: Callable[[torch.Tensor, CheckContext], torch.Tensor]
    description: str
    batched: bool = True

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return self.description

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        return self.mark(got, context)


@dataclass(frozen=True)
class all_of:  # noqa: N801
    """Several rules together: an element is wrong if it breaks any of them."""

    rules: tuple[Check, ...]

    @property
    def batched(self) -> bool:
        """Whether every rule can be vectorised."""
        return all(rule.batched for rule in self.rules)

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        return " and ".join(rule.describe(dtype) for rule in self.rules)

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        import torch

        return torch.stack([rule.wrong(got, context) for rule in self.rules]).any(dim=0)


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bit patterns as whole numbers of the same width; same shape, no copy.

    complex128, which has no whole number of its width, gets a last dimension of two.
    """
    import torch

    if tensor.dtype == torch.complex128:
        tensor = torch.view_as_real(tensor)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    from pkb_gym.engine.problem.vectorised_view import is_vectorised, view_as

    return view_as(tensor, width) if is_vectorised(tensor) else tensor.view(width)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a dtype in which differences do not round: float32 for 16-bit floats, else 64 bits a number."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else torch.float64)


def rms(tensor: torch.Tensor) -> torch.Tensor:
    """Root mean square, 0-dim, 0 for an empty tensor."""
    return tensor.abs().square().mean().sqrt() if tensor.numel() else tensor.new_zeros(())


def unequal(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Marks where two tensors differ; NaN equals NaN."""
    different = got != expected
    if (got.is_floating_point() or got.is_complex()) and _may_hold(different):
        different &= ~(got.isnan() & expected.isnan())
    return different


def difference(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Got - expected, and 0 where both are the same infinity or both NaN."""
    return (got - expected).masked_fill(~unequal(got, expected), 0)


def _may_hold(marks: torch.Tensor) -> bool:
    """Whether a mark may be set; True unseen where a look would wait for a GPU or is needed for many calls at once."""
    from pkb_gym.engine.problem.vectorised_view import is_vectorised

    return marks.is_cuda or is_vectorised(marks) or bool(marks.any())


def outside(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """Marks where |got - expected| > bound; equal infinities and NaN against NaN are right."""
    error = (got - expected).abs()
    bad = ~((error <= bound) & (error < float("inf")))  # a NaN counts as bad here, and a bound may be infinite
    if _may_hold(bad):
        bad &= (got != expected) & ~(got.isnan() & expected.isnan())
    return bad


def far(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float, dim: int | None = None) -> torch.Tensor:
    """Whether ||got - expected|| > bound, in the 2-norm; equal infinities and NaN against NaN are right.

    Args:
        got: Result of the candidate.
        expected: Right result.
        bound: Largest norm of the error that is right.
        dim: Dimension along which norms are taken, kept with length 1; by default the norm of the whole tensor (0-dim).
    """
    import torch

    errors = difference(got, expected)
    error = torch.linalg.vector_norm(errors) if dim is None else torch.linalg.vector_norm(errors, dim=dim, keepdim=True)
    bad: torch.Tensor = ~((error <= bound) & error.isfinite())
    return bad


def more_than(share: float, got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """Marks where |got - expected| > bound if these are more than a share of all elements, else nothing."""
    marks = outside(got, expected, bound)
    return marks & (marks.sum() > share * marks.numel())
