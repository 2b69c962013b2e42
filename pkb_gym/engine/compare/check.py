"""Stage check: every output of every rank against the expected one.

Comparisons are made in the reference gang, one process per rank, on the frozen candidate's memory: of many calls at a
time where that can be done (`screen`), else of one after the other; `merge` runs in the evaluator and makes the report.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.compare.calls import Call, arguments, immutable_leaves, rule_of
from pkb_gym.engine.compare.layout import Slot, result_slots
from pkb_gym.engine.compare.screen import Screen, alike
from pkb_gym.engine.problem.tensors import Leaf
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import CheckReport, Mismatch

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.rules import Check, CheckContext

MAX_MISMATCHES = 8
"""Mismatches that a report lists."""

TOGETHER = 256
"""Calls whose outputs are compared before the device is waited for; copies of them are held until then."""


class RankCheck(Record):
    """What comparing one rank's outputs gave, of one call or of all calls of a block."""

    rank: int
    outputs: int
    elements: int
    elements_right: int
    mismatches: tuple[Mismatch, ...]


class Comparison:
    """One rank's outputs of one call against the baseline's. Nothing waits for the device until `report` is asked for.

    Args:
        call: what is compared.
        copies: the candidate's outputs by leaf name, where they have been copied before.

    Attributes:
        counts: integer tensors: changed words of each immutable argument, then wrong elements of each output.
    """

    def __init__(self, call: Call, copies: Mapping[str, torch.Tensor] | None = None) -> None:
        from pkb_gym.engine.problem.rules import CheckContext

        plan, rank, expected = call.plan, call.rank, call.expected
        self._trial, self._rank = plan.trial, rank
        self._pairs = result_slots(call.problem, plan, rank)
        self._misshapen: list[Mismatch] = []
        candidate = self._copied(call) if copies is None else copies
        self._expected = expected
        self._judged: list[tuple[Check, torch.Tensor, CheckContext]] = []
        args = [arguments(call.problem, plan, of, call.mine.tensor) for of in range(len(plan.axes))]
        for out, slot in self._pairs:
            rule, name = rule_of(out, call.protocol), slot.leaf.name
            if rule is not None and name in candidate:
                context = CheckContext(plan.axes[rank], expected[name], args, expected, candidate, name)
                self._judged.append((rule, candidate[name], context))
        self._immutable = [
            (leaf, call.mine.tensor(slot), call.theirs.tensor(slot))
            for leaf, slot in immutable_leaves(call.problem, plan, rank)
        ]
        self.counts = [(before != after).sum() for _, before, after in self._immutable]
        self.counts += [rule.wrong(got, context).sum() for rule, got, context in self._judged]

    def _copied(self, call: Call) -> dict[str, torch.Tensor]:
        """The outputs as they are now, but for those that are not of the expected shape."""
        copies: dict[str, torch.Tensor] = {}
        for _, slot in self._pairs:
            claim = call.said.get(slot.leaf.name)
            mismatch = _shape_mismatch(self._trial, self._rank, slot, claim, call.expected[slot.leaf.name])
            if mismatch is not None:
                self._misshapen.append(mismatch)
                continue
            shape = slot.leaf.shape if claim is None else tuple(claim["shape"])
            # A copy of our own: rules read an output more than once.
            copies[slot.leaf.name] = call.theirs.tensor({**slot.to_json(), "shape": shape}).clone()
        return copies

    def report(self, counts: Sequence[int]) -> RankCheck:
        """What was found.

        Args:
            counts: the values of `self.counts`.
        """
        mismatches = [
            _modified(self._trial, self._rank, leaf, before, after)
            for (leaf, before, after), count in zip(self._immutable, counts, strict=False)
            if count
        ]
        mismatches += self._misshapen
        elements = right = sum(self._expected[slot.leaf.name].numel() for _, slot in self._pairs)
        right -= sum(mismatch.elements for mismatch in self._misshapen)
        for (rule, got, context), count in zip(self._judged, counts[len(self._immutable) :], strict=True):
            if count:
                mismatches.append(_describe(self._trial, self._rank, rule, got, context))
                right -= mismatches[-1].wrong_elements
        return RankCheck(
            rank=self._rank,
            outputs=len(self._pairs),
            elements=elements,
            elements_right=right,
            mismatches=tuple(mismatches),
        )


def compare_all(rank: int, calls: Iterable[Call]) -> RankCheck:
    """One report of a rank's calls; the device is waited for once per `TOGETHER` of them."""
    reports: list[RankCheck] = []
    remaining = iter(calls)
    while batch := list(itertools.islice(remaining, TOGETHER)):
        looks = [look for run in alike(batch) for look in _look_at(run)]
        values = iter(_numbers([count for look in looks for count in look.counts]))
        for look in looks:
            counts = [next(values) for count in look.counts for _ in range(count.numel())]
            reports += _screened(look, counts) if isinstance(look, Screen) else [look.report(counts)]
        del batch, looks  # the copies that they hold go before the next ones are made
    return RankCheck(
        rank=rank,
        outputs=sum(report.outputs for report in reports),
        elements=sum(report.elements for report in reports),
        elements_right=sum(report.elements_right for report in reports),
        mismatches=tuple(mismatch for report in reports for mismatch in report.mismatches),
    )


def _look_at(run: Sequence[Call]) -> Sequence[Screen | Comparison]:
    """All calls at once, or one by one where there is a single one or a rule that cannot be vectorised."""
    if len(run) > 1:
        try:
            return [Screen(run)]
        except Exception:  # noqa: BLE001  # what is really wrong is seen again at the calls themselves
            pass
    return [Comparison(call) for call in run]


def _screened(screen: Screen, counts: Sequence[int]) -> list[RankCheck]:
    """The reports of calls that were screened; those with anything wrong are looked at once more, by themselves."""
    reports = []
    for index, call in enumerate(screen.calls):
        found = counts[index :: len(screen.calls)]
        if any(found):
            comparison = Comparison(call, screen.copies(index))
            rules = len(comparison.counts) - screen.arguments
            wrong = _numbers(comparison.counts[screen.arguments :]) if rules else []
            # An argument that was changed stays so, whatever it holds by now.
            reports.append(comparison.report([*found[: screen.arguments], *wrong]))
        else:
            right = RankCheck(
                rank=call.rank,
                outputs=screen.outputs,
                elements=screen.elements,
                elements_right=screen.elements,
                mismatches=(),
            )
            reports.append(right)
    return reports


def _numbers(counts: Sequence[torch.Tensor]) -> list[int]:
    """The values of integer tensors, one after the other; this waits for the device."""
    import torch

    numbers: list[int] = torch.cat([count.reshape(-1) for count in counts]).tolist() if counts else []
    return numbers


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


def _describe(trial: int, rank: int, rule: Check, got: torch.Tensor, context: CheckContext) -> Mismatch:
    """An output that has wrong elements."""
    import torch

    from pkb_gym.engine.problem.rules import wide

    wrong = rule.wrong(got, context)
    expected = context.expected
    places = wrong.nonzero()
    if got.is_floating_point() or got.is_complex():
        distance = (wide(got) - wide(expected)).abs()
        distance = distance.masked_fill(distance.isnan(), float("inf")).masked_fill(~wrong, -1)
    else:
        distance = (got.double() - expected.double()).abs().masked_fill(~wrong, -1)
    worst = tuple(int(i) for i in torch.unravel_index(distance.argmax(), got.shape)) if got.dim() else ()
    box = None
    if got.dim():
        box = tuple((int(a), int(b)) for a, b in zip(places.amin(0), places.amax(0), strict=True))
    return Mismatch(
        trial=trial,
        rank=rank,
        output=context.leaf,
        reason="values",
        shape=tuple(got.shape),
        dtype=str(got.dtype).removeprefix("torch."),
        wrong_elements=int(wrong.sum()),
        elements=got.numel(),
        bounding_box=box,
        worst_index=worst,
        got=_show(got[worst]),
        expected=_show(expected[worst]),
        rule=rule.describe(),
    )


def _modified(trial: int, rank: int, leaf: Leaf, before: torch.Tensor, after: torch.Tensor) -> Mismatch:
    import torch

    width = leaf.capacity_bytes // max(1, leaf.capacity)
    return Mismatch(
        trial=trial,
        rank=rank,
        output=leaf.name,
        reason="input_modified",
        shape=leaf.shape or (),
        dtype=leaf.dtype,
        wrong_elements=int((before.view(torch.uint8) != after.view(torch.uint8)).view(-1, width).any(dim=1).sum()),
        elements=leaf.capacity,
        rule="this argument must stay as it is",
    )


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
