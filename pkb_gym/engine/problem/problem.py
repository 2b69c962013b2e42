"""The declaration of a problem: arguments and outputs with symbolic shapes, sizes, inputs, cost, checks.

A declaration checks itself when it is built and imports no torch, so that the whole catalogue loads at once.
"""

from __future__ import annotations

import copy
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pkb_gym.engine.errors import DeclarationError, SizeError
from pkb_gym.engine.problem.arguments import (
    Argument,
    InPlace,
    Linear,
    Output,
    OutputList,
    Result,
    Scalar,
    Sparse,
    Tensor,
    TensorList,
)
from pkb_gym.engine.problem.axes import ITEMSIZE, Axes, AxisValue, resolve_shape
from pkb_gym.engine.problem.cost import UNDECLARED_LEAST_WORK, Cost, LeastWork, undeclared_cost
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF
from pkb_gym.engine.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from pkb_gym.engine.problem.inputs import Draw, InputMaker
    from pkb_gym.engine.problem.values import Value

PROTOCOLS = ("robust", "published")
CATEGORIES = (
    "collective_primitive",
    "tensor_parallel",
    "sequence_parallel",
    "context_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
    "fsdp_zero",
    "vocab_parallel",
    "graph_parallel",
    "geometric_spatial",
    "other",
)

PATTERNS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "send_recv",
    "ring",
    "halo",
)
"""Tags that name a communication pattern; every problem has at least one of them."""

KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    tuple: "a tuple",
    type(None): "None",
}
"""Type of an axis -> what it is called in errors."""

DTYPE_SYNONYMS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}


@dataclass(frozen=True)
class Trials:
    """The trials of one protocol.

    Attributes:
        inputs: Function that returns one value per data argument (Tensor, TensorList, Linear, Sparse), in declared
            order: a tensor, a list of tensors and None, (weight, bias), or (indices, values). Called on every rank.
        vary: Function from the axes of the size and ``W`` to those that change from trial to trial (a root rank, a
            mode, ragged sizes), none where nothing changes. Its draws are equal on all ranks. Called before
            `Problem.derive`.
    """

    inputs: Callable[[InputMaker], tuple[Value, ...]]
    vary: Callable[[Axes, Draw], Mapping[str, AxisValue]] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """One of the benchmark's problems; equal to itself alone.

    Attributes:
        name: CamelCase; the environment is `PKB/<name>-v0`, the folder is its snake case.
        upstream: File stem in ParallelKernelBench, for example "12_allgather_gemm"; empty for a problem outside it.
        category: One of `CATEGORIES`.
        summary: Summary of one sentence.
        origin: Code base or model that the problem comes from.
        weaknesses: Errors that the published inputs or tolerances accept, one sentence each.
        tags: Tags for filters, such as the communication pattern.
        no_capture_because: Reason why the reference cannot be captured as a CUDA graph; empty where it can.
        dtypes: Legal floating dtypes, the default first.
        sizes: "tiny", "published" and "large" -> axes.
        args: Arguments in the order of `solution`'s signature.
        outputs: Results, returned ones first, in returned order.
        returns: "value" (the single returned output itself), "tuple" (in order) or "dict" (by name).
        derive: Function from one rank's axes, with ``W`` and ``r``, to those that follow from them.
        robust, published: Settings of the two protocols; None where there is no published benchmark.
        cost: Function that gives one rank's work in a good kernel. The roofline needs it and `least_work`; all else
            works without.
        least_work: Part of the work that no kernel avoids, with the reason.
        world_sizes: Legal world sizes.
        declared_in: Path of the `problem.py` that declares it; the catalogue fills it in.
    """

    name: str
    category: str
    summary: str
    dtypes: tuple[str, ...]
    sizes: Mapping[str, Mapping[str, AxisValue]]
    args: tuple[Argument, ...]
    outputs: tuple[Result, ...]
    robust: Trials
    published: Trials | None = None
    cost: Callable[[Axes], Cost] = undeclared_cost
    least_work: LeastWork = UNDECLARED_LEAST_WORK
    derive: Callable[[Axes], Mapping[str, AxisValue]] = lambda _: {}
    returns: Literal["value", "tuple", "dict"] = "value"
    upstream: str = ""
    origin: str = ""
    weaknesses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    no_capture_because: str = ""
    world_sizes: tuple[int, ...] = (1, 2, 4, 8)
    declared_in: str = ""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_sizes()
        for size in self.sizes:
            for rank in range(4):
                self._check_shapes(self.axes(size=size, world_size=4, rank=rank))

    def found_in(self, path: str) -> Problem:
        """This declaration with `declared_in` filled in; what was checked when it was built is not checked again."""
        found = copy.copy(self)
        object.__setattr__(found, "declared_in", path)
        return found

    @property
    def folder(self) -> str:
        """Snake case of the name: AllGatherGemm -> all_gather_gemm, KJTAllToAll -> kjt_all_to_all."""
        return snake_case(self.name)

    @property
    def number(self) -> int:
        """Position in the upstream benchmark, from 1; 0 for a problem outside it."""
        return int(self.upstream.split("_", 1)[0]) if self.upstream else 0

    @property
    def env_id(self) -> str:
        """Gymnasium id."""
        return f"PKB/{self.name}-v0"

    @cached_property
    def data_args(self) -> tuple[Tensor | TensorList | Linear | Sparse, ...]:
        """The arguments that hold data, in order."""
        return tuple(arg for arg in self.args if isinstance(arg, Tensor | TensorList | Linear | Sparse))

    @property
    def argument_kinds(self) -> tuple[str, ...]:
        """The kinds of its arguments, each once: tensor, tensor_list, linear, sparse, group, or a scalar's kind."""
        kinds = (arg.kind if isinstance(arg, Scalar) else snake_case(type(arg).__name__) for arg in self.args)
        return tuple(dict.fromkeys(kinds))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The tags for the communication of the ranks."""
        return tuple(tag for tag in self.tags if tag in PATTERNS)

    @cached_property
    def returned(self) -> tuple[Output | OutputList, ...]:
        """The outputs that `solution` of the python dialect returns, in order."""
        return tuple(out for out in self.outputs if not isinstance(out, InPlace))

    def least_cost(self, ax: Axes) -> Cost:
        """The work of one rank that no legal kernel avoids."""
        return self.least_work.on_rank(ax, self.cost(ax))

    def trials(self, protocol: str) -> Trials:
        """The protocol of that name.

        Raises:
            DeclarationError: there is no such protocol.
        """
        if protocol not in PROTOCOLS:
            raise DeclarationError(f"{self.name}: no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
        trials = self.robust if protocol == "robust" else self.published
        if trials is None:
            raise DeclarationError(f"{self.name}: no protocol 'published': the problem declares no `published`")
        return trials

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that it declares."""
        return PROTOCOLS if self.published is not None else ("robust",)

    @property
    def undeclared(self) -> tuple[str, ...]:
        """The fields that it leaves out, of those that the roofline needs: `cost`, `least_work`."""
        declared = {
            "cost": self.cost is not undeclared_cost,
            "least_work": self.least_work is not UNDECLARED_LEAST_WORK,
        }
        return tuple(name for name, is_declared in declared.items() if not is_declared)

    def base_axes(self, size: str | Mapping[str, AxisValue]) -> dict[str, AxisValue]:
        """The axes of a named size, or of "published" with some replaced.

        Raises:
            SizeError: unknown size or axis.
        """
        if isinstance(size, str):
            if size not in self.sizes:
                hint = did_you_mean(size, self.sizes)
                known = ", ".join(self.sizes)
                raise SizeError(f"{self.name}: no size {size!r}; there are {known}, or axes by name.{hint}")
            return dict(self.sizes[size])
        axes = dict(self.sizes["published"])
        unknown = sorted(set(size) - set(axes))
        if unknown:
            hint = did_you_mean(unknown[0], axes)
            known = ", ".join(sorted(axes))
            raise SizeError(f"{self.name}: no axis {', '.join(unknown)}; there are {known}.{hint}")
        for axis, value in size.items():
            self._check_kind(axis, value)
        return axes | dict(size)

    def _check_kind(self, axis: str, value: AxisValue) -> None:
        """Refuses a value of another kind than the axis has in the named sizes; None may stand for any."""
        kinds = {type(axes[axis]) for axes in self.sizes.values()}
        fitting = kinds | {type(None)} | ({int} if float in kinds else set())
        if kinds != {type(None)} and type(value) not in fitting:
            expected = " or ".join(sorted(KINDS[kind] for kind in kinds))
            raise SizeError(f"{self.name}: axis {axis}={value!r} must be {expected}")

    def check_axes(self, size: str | Mapping[str, AxisValue], world_size: int, dtype: str, protocol: str) -> None:
        """Refuses axes of which some rank cannot make its shapes, those of drawn trials included.

        Raises:
            SizeError: they do not fit together, or not with the world size or dtype.
        """
        with self.fitting_axes(size):
            for rank in range(world_size if world_size in self.world_sizes else 1):
                self._check_shapes(
                    self.axes(size=size, world_size=world_size, rank=rank, dtype=dtype, protocol=protocol)
                )
            if not isinstance(size, str):
                for draw in self._first_draws():
                    self.varied_axes(size, world_size, dtype, protocol, draw)

    def _first_draws(self) -> list[Draw]:
        from pkb_gym.engine.problem.inputs import Draw, TrialKey

        return [Draw(TrialKey(b"", 0, self.name, 0, 0, timed)) for timed in (False, True)]

    @contextmanager
    def fitting_axes(self, size: str | Mapping[str, AxisValue]) -> Iterator[None]:
        """Turns any error of this declaration on a user's axes into a SizeError.

        A declaration may fail in any way on unforeseen axes; on its own sizes it does not.

        Args:
            size: Size whose axes are used inside the context.

        Raises:
            SizeError: they do not fit together.
        """
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, SizeError) or isinstance(size, str):
                raise
            raise SizeError(f"{self.name}: axes {reprlib.repr(dict(size))} do not fit together: {error}") from None

    def axes(
        self,
        *,
        size: str | Mapping[str, AxisValue],
        world_size: int,
        rank: int,
        dtype: str | None = None,
        protocol: str = "robust",
        draw: Draw | None = None,
    ) -> Axes:
        """One rank's complete axes, of one trial where `draw` is given and otherwise as the size names them.

        Raises:
            SizeError: the axes do not fit together, or not with the world size or dtype.
        """
        if world_size not in self.world_sizes:
            raise SizeError(f"{self.name}: world size must be one of {self.world_sizes}, got {world_size}")
        dtype = self.dtypes[0] if dtype is None else dtype
        if dtype not in self.dtypes:
            hint = did_you_mean(dtype.removeprefix("torch."), self.dtypes, DTYPE_SYNONYMS)
            raise SizeError(f"{self.name}: dtype must be one of {', '.join(self.dtypes)}, got {dtype!r}.{hint}")
        return self.derived_axes(self.varied_axes(size, world_size, dtype, protocol, draw), rank)

    def varied_axes(
        self, size: str | Mapping[str, AxisValue], world_size: int, dtype: str, protocol: str, draw: Draw | None
    ) -> Axes:
        """The axes of one trial that are equal on all ranks, `W` included.

        Raises:
            SizeError: the axes do not fit together.
        """
        ax = Axes({**self.base_axes(size), "W": world_size}, dtype)
        vary = self.trials(protocol).vary
        if draw is None or vary is None:
            return ax
        with self._named_errors():
            return ax.replace(**vary(ax, draw))

    def derived_axes(self, varied: Axes, rank: int) -> Axes:
        """One rank's complete axes, from those that are equal on all ranks.

        Raises:
            SizeError: the axes do not fit together.
        """
        ax = varied.replace(r=rank)
        with self._named_errors():
            return Axes(ax | self.derive(ax), ax.dtype, self.name)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Has every SizeError of `derive` and `vary` begin with the problem's name."""
        try:
            yield
        except SizeError as error:
            raise SizeError(f"{self.name}: {error}") from None

    def _check_names(self) -> None:
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", self.name):
            raise DeclarationError(f"problem name {self.name!r} must be CamelCase")
        if self.category not in CATEGORIES:
            raise DeclarationError(f"{self.name}: category {self.category!r} is not one of {', '.join(CATEGORIES)}")
        names = [arg.name for arg in self.args] + [out.name for out in self.returned]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DeclarationError(f"{self.name}: {', '.join(twice)} named more than once among arguments and outputs")
        mutable = {arg.name for arg in self.args if isinstance(arg, Tensor | TensorList) and arg.mutable}
        for out in self.outputs:
            if isinstance(out, InPlace) and out.name not in mutable:
                raise DeclarationError(f"{self.name}: in-place result {out.name!r} is not a mutable argument")
            if isinstance(out, Output) and out.is_returned != (out.capacity is not None):
                raise DeclarationError(
                    f"{self.name}: output {out.name!r} needs a capacity exactly when its shape has '?'"
                )
        if not self.outputs:
            raise DeclarationError(f"{self.name}: declares no output")
        if self.returns == "value" and len(self.returned) > 1:
            raise DeclarationError(f"{self.name}: returns {len(self.returned)} outputs; give 'tuple' or 'dict'")
        for dtype in self.dtypes:
            if dtype not in UNIT_ROUNDOFF:
                known = ", ".join(UNIT_ROUNDOFF)
                raise DeclarationError(
                    f"{self.name}: dtypes lists {dtype!r}; those that a problem is run in are {known}. Tensors of "
                    "others name it themselves, as their `dtype`"
                )
        named = [d for d in (*self.dtypes, *(getattr(x, "dtype", None) for x in (*self.args, *self.outputs))) if d]
        for dtype in named:
            if dtype not in ITEMSIZE and dtype not in self.sizes.get("tiny", {}):
                raise DeclarationError(f"{self.name}: dtype {dtype!r} is not one of {', '.join(ITEMSIZE)}")

    def _check_sizes(self) -> None:
        missing = {"tiny", "published", "large"} - set(self.sizes)
        if missing:
            raise DeclarationError(f"{self.name}: sizes lack {', '.join(sorted(missing))}")
        tiny = set(self.sizes["tiny"])
        for size, axes in self.sizes.items():
            if set(axes) != tiny:
                raise DeclarationError(f"{self.name}: size {size} has axes {sorted(axes)}, tiny has {sorted(tiny)}")

    def _check_shapes(self, ax: Axes) -> None:
        for arg in self.args:
            if isinstance(arg, Tensor | Linear | Sparse):
                resolve_shape(arg.shape, ax)
            elif isinstance(arg, TensorList):
                if None in ax.shapes(arg.shapes) and not arg.may_hold_none:
                    raise DeclarationError(f"{self.name}: {arg.name} holds None, which needs may_hold_none=True")
            else:
                ax[arg.axis or arg.name]
        for out in self.returned:
            if isinstance(out, OutputList):
                ax.shapes(out.shapes)
            elif out.capacity is not None:
                ax.number(out.capacity)
            else:
                resolve_shape(out.shape, ax)
        if not self.undeclared:
            self.least_cost(ax)


WORDS = ("MoE", "LoRA", "ZeRO", "IoU", "TP", "RMS")
"""Names that mix cases, or meet another run of capitals, and are one word all the same."""


def snake_case(name: str) -> str:
    """CamelCase in snake case: AllGatherGemm -> all_gather_gemm, SAM3IoUSuppression -> sam3_iou_suppression."""
    for word in WORDS:
        name = re.sub(rf"{word}(?=[A-Z0-9]|$)", f"_{word.capitalize()}", name)
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"_+", "_", name).strip("_").lower()
