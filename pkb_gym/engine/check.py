"""Stage check: every output of every rank against the expected one.

`compare_rank` runs in the reference gang, one process per rank, on the frozen candidate's memory; `merge` runs in the
evaluator and makes the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.feedback import CheckReport, Mismatch
from pkb_gym.engine.layout import SetPlan, Slot, result_slots
from pkb_gym.engine.leaves import argument_leaves
from pkb_gym.engine.problem import InPlace, Output, OutputList, Problem, Tensor, TensorList
from pkb_gym.engine.record import Record

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.checks import Check, CheckContext
    from pkb_gym.engine.inputs import Value
    from pkb_gym.engine.rankside.devices import AnyHeap

MAX_MISMATCHES = 8
"""Mismatches that a report lists."""


class RankCheck(Record):
    """What comparing one rank's outputs of one call gave."""

    trial: int
    rank: int
    outputs: int
    elements: int
    elements_right: int
    mismatches: tuple[Mismatch, ...]


def rule_of(out: Output | OutputList | InPlace, protocol: str) -> Check | None:
    """The rule of an output under a protocol; None where it is not compared."""
    return out.check if protocol == "robust" else out.published


def compare_rank(
    problem: Problem,
    plan: SetPlan,
    rank: int,
    *,
    protocol: str,
    args: Sequence[Mapping[str, Value]],
    expected: Mapping[str, torch.Tensor],
    mine: AnyHeap,
    theirs: AnyHeap,
    said: Mapping[str, Mapping[str, Any]],
) -> RankCheck:
    """Compares one rank's outputs of one call.

    Args:
        problem: its declaration.
        plan: where the call's tensors lie.
        rank: whose outputs.
        protocol: "robust" or "published".
        args: every rank's data arguments as they were made.
        expected: the baseline's results by leaf name.
        mine: the reference heap, which holds the inputs as they were made.
        theirs: the candidate's heap.
        said: leaf name -> shape and dtype of what the candidate says it returned; preallocated outputs are not in it.
    """
    from pkb_gym.engine.checks import CheckContext

    pairs = result_slots(problem, plan, rank)
    mismatches = _modified_inputs(problem, plan, rank, mine, theirs)
    candidate: dict[str, torch.Tensor] = {}
    for _, slot in pairs:
        claim = said.get(slot.leaf.name)
        mismatch = _shape_mismatch(plan.trial, rank, slot, claim, expected[slot.leaf.name])
        if mismatch is not None:
            mismatches.append(mismatch)
            continue
        shape = slot.leaf.shape if claim is None else tuple(claim["shape"])
        # A copy of our own: rules read an output more than once.
        candidate[slot.leaf.name] = theirs.tensor({**slot.to_json(), "shape": shape}).clone()
    elements = right = 0
    for out, slot in pairs:
        rule, name = rule_of(out, protocol), slot.leaf.name
        elements += expected[name].numel()
        if name not in candidate:
            continue
        if rule is None:
            right += expected[name].numel()
            continue
        context = CheckContext(plan.axes[rank], expected[name], args, expected, candidate, name)
        wrong, mismatch = _judge(plan.trial, rank, rule, candidate[name], context)
        right += expected[name].numel() - wrong
        if mismatch is not None:
            mismatches.append(mismatch)
    return RankCheck(
        trial=plan.trial,
        rank=rank,
        outputs=len(pairs),
        elements=elements,
        elements_right=right,
        mismatches=tuple(mismatches),
    )


def _shape_mismatch(
    trial: int,
    rank: int,
    slot: Slot,
    claim: Mapping[str, Any] | None,
    expected: torch.Tensor,
) -> Mismatch | None:
    shape, dtype = tuple(expected.shape), str(expected.dtype).removeprefix("torch.")
    if claim is None:
        if slot.leaf.shape is not None:  # preallocated
            return None
        claim = {"shape": (), "dtype": "nothing"}
    got_shape, got_dtype = tuple(claim["shape"]), str(claim["dtype"])
    if (got_shape, got_dtype) == (shape, dtype):
        return None
    return Mismatch(
        trial=trial,
        rank=rank,
        output=slot.leaf.name,
        reason="shape_or_dtype",
        shape=shape,
        dtype=dtype,
        wrong_elements=expected.numel(),
        elements=expected.numel(),
        got=f"{got_shape} {got_dtype}",
        expected=f"{shape} {dtype}",
        rule="shape and dtype",
    )


def _judge(trial: int, rank: int, rule: Check, got: torch.Tensor, context: CheckContext) -> tuple[int, Mismatch | None]:
    from pkb_gym.engine.checks import wide

    wrong = rule.wrong(got, context)
    count = int(wrong.sum())
    if not count:
        return 0, None
    expected = context.expected
    places = wrong.nonzero()
    if got.is_floating_point() or got.is_complex():
        distance = (wide(got) - wide(expected)).abs()
        distance = distance.masked_fill(distance.isnan(), float("inf")).masked_fill(~wrong, -1)
    else:
        distance = (got.double() - expected.double()).abs().masked_fill(~wrong, -1)
    import torch

    worst = tuple(int(i) for i in torch.unravel_index(distance.argmax(), got.shape)) if got.dim() else ()
    box = None
    if got.dim():
        box = tuple((int(a), int(b)) for a, b in zip(places.amin(0), places.amax(0), strict=True))
    mismatch = Mismatch(
        trial=trial,
        rank=rank,
        output=context.leaf,
        reason="values",
        shape=tuple(got.shape),
        dtype=str(got.dtype).removeprefix("torch."),
        wrong_elements=count,
        elements=got.numel(),
        bounding_box=box,
        worst_index=worst,
        got=_show(got[worst]),
        expected=_show(expected[worst]),
        rule=rule.describe(),
    )
    return count, mismatch


def _modified_inputs(problem: Problem, plan: SetPlan, rank: int, mine: AnyHeap, theirs: AnyHeap) -> list[Mismatch]:
    """Immutable arguments that no longer hold, bit for bit, what was put there."""
    found = []
    for arg in problem.data_args:
        if isinstance(arg, Tensor | TensorList) and arg.mutable:
            continue
        for leaf in argument_leaves(arg, plan.axes[rank]):
            slot = plan.slots[rank][leaf.name]
            raw = {"offset": slot.offset, "shape": [leaf.capacity_bytes], "dtype": "uint8"}
            before, after = mine.tensor(raw), theirs.tensor(raw)
            if not bool((before == after).all()):
                width = leaf.capacity_bytes // max(1, leaf.capacity)
                changed = int((before != after).view(-1, width).any(dim=1).sum())
                found.append(
                    Mismatch(
                        trial=plan.trial,
                        rank=rank,
                        output=leaf.name,
                        reason="input_modified",
                        shape=leaf.shape or (),
                        dtype=leaf.dtype,
                        wrong_elements=changed,
                        elements=leaf.capacity,
                        rule="this argument must stay as it is",
                    )
                )
    return found


def merge(checks: Sequence[RankCheck], trials: int) -> CheckReport:
    """One report over all ranks and calls; wrong shapes first, then by number of wrong elements."""
    mismatches = sorted(
        (mismatch for check in checks for mismatch in check.mismatches),
        key=lambda m: (m.reason != "shape_or_dtype", m.reason != "values", -m.wrong_elements, m.trial, m.rank),
    )
    wrong = {(m.trial, m.rank, m.output) for m in mismatches if m.reason != "input_modified"}
    outputs = sum(check.outputs for check in checks)
    return CheckReport(
        trials=trials,
        outputs_compared=outputs,
        outputs_right=outputs - len(wrong),
        elements_compared=sum(check.elements for check in checks),
        elements_right=sum(check.elements_right for check in checks),
        mismatches=tuple(mismatches[:MAX_MISMATCHES]),
    )


def _show(element: torch.Tensor) -> str:
    value = element.item()
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)
