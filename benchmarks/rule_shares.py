"""Errors as the rules of problems see them: shares of what is allowed, of elements, of norms and of counts.

Rules compare by three functions of `pkb_gym.engine.problem.rules`: `outside` (elements), `far` (norms) and `more_than`
(how many elements). While a rule runs, these note the share of each error in its bound.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from unittest import mock

import torch

from pkb_gym.engine.problem import rules as rules_module
from pkb_gym.engine.problem.rules import Check, CheckContext, all_of, difference, exact, same_bits
from pkb_gym.engine.problem.values import torch_dtype
from tests.problems.support import Run

Kind: TypeAlias = Literal["elements", "rows", "norm", "count"]
"""Each element, the norm of each row, the norm of a tensor, the number of elements with some error."""

LARGEST_SHARE = 2.0**12
"""The share of an element that is wrong whatever the bound, such as one that must be equal."""

TAIL = 2000
"""Largest shares that are kept."""

TINY = 2.0**-6
"""Errors of this share of the bound may be several steps, where a result is so near 0 that steps are small."""

BLOCKS = 16
"""Parts of a tensor that show how much its norm varies; each has every so many-th run of elements."""

LONGEST_RUN = 64
"""Elements of a run, which may have errors in common."""

FEW_ROWS = 16
"""Norms of a tensor's parts are rows if there are more of them than this."""


@dataclass(frozen=True)
class Rounding:
    """The effect of the last rounding of results on their errors; 1-dim tensors.

    Attributes:
        steps: error / (bound - roundings), of errors that are not 0.
        beyond: (error - roundings) / (bound - roundings), at least 0, of all elements.
        is_one_step: whether no error is larger than the roundings, but where it is less than `TINY` of the bound.
    """

    steps: torch.Tensor
    beyond: torch.Tensor
    is_one_step: bool


@dataclass
class Shares:
    """Errors of many elements, or norms, as shares of what one rule allows.

    Attributes:
        count: of all.
        largest: the largest shares, in no order.
        total, squares: sums of the shares and of their squares.
        has_room: whether the bound is larger than the last roundings of the two results, at every element.
        is_one_step: whether each error is explained by these roundings alone, to neighbours.
        beyond: like `largest`, of (error - roundings) / (bound - roundings), while `has_room`.
        steps, step_squares, largest_step: sums of error / (bound - roundings), of its squares, and its largest value,
            while `is_one_step`.
        differing: errors that are not 0.
        noise: largest variance of a norm's share, by how the parts of its tensor differ.
    """

    count: int = 0
    largest: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    total: float = 0.0
    squares: float = 0.0
    has_room: bool = True
    is_one_step: bool = True
    beyond: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    steps: float = 0.0
    step_squares: float = 0.0
    largest_step: float = 0.0
    differing: int = 0
    noise: float = 0.0

    def add(self, shares: torch.Tensor, rounding: Rounding | None = None, noise: float = 0.0) -> None:
        """Notes those of one tensor.

        Args:
            shares: any shape.
            rounding: what the last rounding makes of them; None where that is unknown, or leaves no room.
            noise: variance of a norm's share.
        """
        self.noise = max(self.noise, noise)
        flat = shares.reshape(-1).double()
        self.count += flat.numel()
        self.largest = _largest(self.largest, flat)
        self.total += float(flat.sum())
        self.squares += float(flat.square().sum())
        self.differing += int((flat > 0).sum())
        if rounding is None:
            self.has_room = self.is_one_step = False
            return
        self.beyond = _largest(self.beyond, rounding.beyond)
        self.is_one_step = self.is_one_step and rounding.is_one_step
        if rounding.steps.numel():
            self.steps += float(rounding.steps.sum())
            self.step_squares += float(rounding.steps.square().sum())
            self.largest_step = max(self.largest_step, float(rounding.steps.max()))

    def distinct(self) -> list[float]:
        """The different values of few, without 0: ranks that have the same result add nothing."""
        return [value for value in self.largest.unique().tolist() if value > 0]

    @property
    def top(self) -> float:
        """The largest of all; 0 where there is none."""
        return float(self.largest.max()) if self.largest.numel() else 0.0


def _largest(known: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    both = torch.cat([known, new.topk(min(new.numel(), TAIL)).values])
    return both.topk(min(both.numel(), TAIL)).values


@dataclass(frozen=True)
class Rule:
    """One comparison of one of an output's rules.

    Attributes:
        output: its name.
        number: of the rule, in order of declaration.
        kind: what it compares.
        place: distinguishes a rule's norms, and its counts, from each other.
    """

    output: str
    number: int
    kind: Kind
    place: int


@dataclass(frozen=True)
class _Seen:
    """One comparison: its kind, the shares, and `rounding_of` its errors."""

    kind: Kind
    shares: torch.Tensor
    rounding: Rounding | None
    noise: float = 0.0


def parts(rule: Check) -> Sequence[Check]:
    """The rules that a rule joins, or itself."""
    return rule.rules if isinstance(rule, all_of) else (rule,)


def is_exact(rule: Check) -> bool:
    """Whether it asks for equal values."""
    return isinstance(rule, exact | same_bits)


def shares_of(pairs: Sequence[tuple[Run, Run]]) -> dict[Rule, Shares]:
    """The shares of every rule, over all ranks and trials.

    Args:
        pairs: of each trial the reference's run and a variant's.
    """
    found: dict[Rule, Shares] = {}
    for truth, got in pairs:
        rules = {out.name: out.check for out in truth.problem.outputs}
        for rank, outputs in enumerate(got.outputs):
            for leaf, value in outputs.items():
                owner, mine = leaf.split("[")[0], truth.outputs[rank]
                context = CheckContext(truth.axes[rank], mine[leaf], truth.args, mine, outputs, leaf)
                for number, part in enumerate(parts(rules[owner])):
                    if is_exact(part):
                        continue
                    places: dict[Kind, int] = {}
                    for seen in _comparisons(part, value, context):
                        # Pieces of one tensor are compared by one bound; norms by several.
                        place = 0 if seen.kind in ("elements", "rows") else places.get(seen.kind, 0)
                        places[seen.kind] = place + 1
                        found.setdefault(Rule(owner, number, seen.kind, place), Shares()).add(
                            seen.shares, seen.rounding, seen.noise
                        )
    return found


def _comparisons(rule: Check, got: torch.Tensor, context: CheckContext) -> Sequence[_Seen]:
    """The quantities that a rule compares, as shares of its limits."""
    if got.shape != context.expected.shape:
        return [_Seen("elements", torch.tensor([LARGEST_SHARE]), None)]
    seen: list[_Seen] = []
    with _noted(seen, torch_dtype(context.ax.dtype)):
        refused = bool(rule.wrong(got, context).any())
    beyond = any(bool((each.shares > 1).any()) for each in seen)
    if refused and not beyond:
        return [_Seen("elements", torch.full((max(1, got.numel()),), LARGEST_SHARE), None)]
    if beyond and not refused:  # the rule allows what lies at a border; `proven_bounds` has the reason
        return [_Seen(each.kind, each.shares[each.shares <= 1], None) for each in seen]
    # A rule that is no bound differs in nothing that it has not refused.
    return seen or [_Seen("elements", torch.zeros(max(1, got.numel())), None)]


def quotients(error: torch.Tensor, allowed: torch.Tensor | float) -> torch.Tensor:
    """Quotients of error and limit; 0 for no error, whatever the limit."""
    share = torch.where(error == 0, torch.zeros_like(error), error / torch.as_tensor(allowed, dtype=error.dtype))
    return share.double().nan_to_num(nan=LARGEST_SHARE, posinf=LARGEST_SHARE).clamp(max=LARGEST_SHARE).reshape(-1)


def half_steps(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance of neighbours of a floating dtype at these values, in the dtype of `values`."""
    kind = torch.finfo(dtype)
    _, exponents = torch.frexp(values.abs().clamp(min=kind.smallest_normal))
    return torch.ldexp(torch.full_like(values, kind.eps / 4), exponents)


def rounding_of(
    got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float, dtype: torch.dtype
) -> Rounding | None:
    """The effect of the last rounding on the errors of results.

    Args:
        got: the candidate's, in a wider dtype.
        expected: the baseline's, rounded, or an exact result.
        bound: of the error.
        dtype: of the inputs; results of another dtype may have been rounded to it.

    Returns:
        None where results are not of that dtype, or where roundings alone may exceed the bound.
    """
    if got.is_complex() or not dtype.is_floating_point or not bool((got.to(dtype).to(got.dtype) == got).all()):
        return None
    error = (got - expected).abs()
    rounded = expected.to(dtype).to(expected.dtype) == expected
    last = half_steps(got, dtype) + torch.where(rounded, half_steps(expected, dtype), 0.0)
    allowed = torch.as_tensor(bound, dtype=error.dtype, device=error.device).expand(error.shape)
    room, where = allowed - last, error > 0
    if bool(((room <= 0) & (allowed > 0)).any()):
        return None
    beyond = ((error - last).clamp(min=0) / room).masked_fill(~where, 0)
    larger = where & (error > last) & (error > TINY * allowed)
    return Rounding((error / room)[where].double(), beyond.double().reshape(-1), not bool(larger.any()))


def _parts_of(errors: torch.Tensor, dim: int | None) -> Sequence[torch.Tensor]:
    """The tensors, or rows, that norms are taken of."""
    return [errors.reshape(-1)] if dim is None else list(errors.reshape(-1, errors.shape[dim]))


def _relative_noise(errors: torch.Tensor) -> float:
    """Variance of the norm of so many errors, as a share of its square: from the sums of squares of `BLOCKS` parts."""
    length = max(1, min(LONGEST_RUN, errors.numel() // (4 * BLOCKS)))
    runs = (
        torch.nn.functional.pad(errors.double().abs().square(), (0, -errors.numel() % length)).view(-1, length).sum(1)
    )
    squares = runs.new_zeros(BLOCKS).index_add_(0, torch.arange(len(runs)) % BLOCKS, runs)
    total = float(squares.sum())
    return BLOCKS * float(squares.var()) / (4 * total**2) if total else 0.0


@contextlib.contextmanager
def _noted(seen: list[_Seen], dtype: torch.dtype) -> Iterator[None]:
    """Has the comparing functions, in every module that took them, note what they compare."""
    outside, far, more_than = rules_module.outside, rules_module.far, rules_module.more_than

    @functools.wraps(outside)
    def outside_noted(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
        same = (got == expected) | (got.isnan() & expected.isnan())
        shares = quotients((got - expected).abs().masked_fill(same, 0), bound)
        rounding = rounding_of(got.masked_fill(same, 0), expected.masked_fill(same, 0), bound, dtype)
        seen.append(_Seen("elements", shares, rounding))
        return outside(got, expected, bound)

    @functools.wraps(far)
    def far_noted(
        got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float, dim: int | None = None
    ) -> torch.Tensor:
        errors = difference(got, expected)
        norms = torch.linalg.vector_norm(errors, dim=dim, keepdim=dim is not None)
        kind: Kind = "rows" if norms.numel() > FEW_ROWS else "norm"
        shares = quotients(norms, bound)
        noise = 0.0 if kind == "rows" else max(map(_relative_noise, _parts_of(errors, dim)), default=0.0)
        seen.append(_Seen(kind, shares, None, noise * float(shares.max()) ** 2 if shares.numel() else 0.0))
        return far(got, expected, bound, dim)

    @functools.wraps(more_than)
    def more_than_noted(
        share: float, got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float
    ) -> torch.Tensor:
        marks = outside(got, expected, bound)
        seen.append(_Seen("count", marks.double().mean().reshape(1) / share, None))
        return marks & (marks.sum() > share * marks.numel())

    with contextlib.ExitStack() as stack:
        for function, noted in ((outside, outside_noted), (far, far_noted), (more_than, more_than_noted)):
            for module in list(sys.modules.values()):
                name = function.__name__
                if getattr(module, "__name__", "").startswith("pkb_gym.") and vars(module).get(name) is function:
                    stack.enter_context(mock.patch.object(module, name, noted))
        yield
