"""The outputs of alike calls against the baseline's.

To launch a kernel costs the same for one small call as for fifty, and a rule launches dozens. So the tensors of calls
that are alike are taken as one tensor with a dimension more, over which a rule is vectorised (`torch.vmap`) unless it
declares that it cannot be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.compare.call_words import call_words
from pkb_gym.engine.compare.calls import Call, arguments, immutable_leaves, rule_of
from pkb_gym.engine.compare.layout import PlacedLeaf, placed_results
from pkb_gym.engine.compare.mismatches import contents, is_untouched, modified_argument, wrong_shape, wrong_values
from pkb_gym.engine.compare.stacked import stacked
from pkb_gym.engine.compare.trivial import JudgedOutput, without_work
from pkb_gym.engine.problem import InPlace, Output
from pkb_gym.engine.records.check_report import Mismatch
from pkb_gym.engine.wire.arguments import TensorSlot

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem import Value
    from pkb_gym.engine.problem.rules import Check, CheckContext
    from pkb_gym.engine.rankside.devices import AnyHeap

BATCH_BYTES = {"cpu": 1 << 19, "cuda": 256 << 20}
"""Size of each rank's arguments and outputs that are compared together: rules make several copies of them, which on the
CPU should stay in its caches."""


def alike(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Runs of consecutive calls that can be compared together, no more of them than `BATCH_BYTES` allow."""
    for (_, claimed), group in itertools.groupby(calls, lambda call: (id(call.plan.axes), any(call.claims.values()))):
        run = list(group)
        plain = not claimed and all(placed.leaf.shape is not None for placed in _placed(run[0]))
        room = BATCH_BYTES["cpu" if run[0].candidate_heap.cuda_device is None else "cuda"]
        most = max(1, room // max(1, run[0].plan.nbytes)) if plain else 1  # a call may have nothing but empty tensors
        yield from (run[first : first + most] for first in range(0, len(run), most))


def _placed(call: Call) -> list[PlacedLeaf]:
    return [placed for _, placed in placed_results(call.problem, call.plan, call.rank)]


@dataclass(frozen=True)
class CallVerdict:
    """The comparison of one call of one rank.

    Attributes:
        outputs: Number of output leaves.
        elements: Number of elements of all outputs.
        elements_right: Number of right elements.
        mismatches: Mismatches in this order: modified arguments, misshapen outputs, wrong values.
        untouched: Whether all wrong outputs hold what lay there before the call; False where none is wrong.
    """

    outputs: int
    elements: int
    elements_right: int
    mismatches: tuple[Mismatch, ...]
    untouched: bool = False


@dataclass(frozen=True)
class _RuledOutput:
    """An output that has a rule.

    Attributes:
        name: Name of the leaf.
        rule: Rule of the output.
        argument: Place in the first call, if the output is an argument.
        is_local: Whether a rank computes it without its peers.
    """

    name: str
    rule: Check
    argument: TensorSlot | None
    is_local: bool


class Comparison:
    """One rank's outputs of alike calls against the baseline's. Waits for the device in `verdicts` alone.

    Args:
        calls: Calls of equal axes, at least one. A call whose outputs' shapes differ, or were claimed to, comes alone.

    Attributes:
        counts: Integer tensors of shape [calls]: for each immutable argument whether it was changed, then for each
            output with a rule the number of wrong elements.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        import torch

        first = self._first = calls[0]
        self._calls = calls
        self._placed = _placed(first)
        self._misshapen: list[Mismatch] = []
        self._got = self._copied()
        self._expected = {
            placed.leaf.name: torch.stack([call.expected[placed.leaf.name] for call in calls])
            for placed in self._placed
        }
        self._arguments = [
            arguments(first.problem, first.plan, rank, self._read_inputs) for rank in range(len(first.plan.axes))
        ]
        self._ruled = [
            _RuledOutput(
                placed.leaf.name,
                rule,
                placed.slot if isinstance(out, InPlace) else None,
                isinstance(out, Output) and out.is_local,
            )
            for out, placed in placed_results(first.problem, first.plan, first.rank)
            if placed.leaf.name in self._got and (rule := rule_of(out, first.protocol)) is not None
        ]
        self._immutable = list(immutable_leaves(first.problem, first.plan, first.rank))
        self.counts = [self._changed(slot) for _, slot in self._immutable]
        self.counts += self._wrong()

    def _copied(self) -> dict[str, torch.Tensor]:
        """The outputs as they are now, [calls, *shape], but for those that are not of the expected shape."""
        copies: dict[str, torch.Tensor] = {}
        for placed in self._placed:
            name = placed.leaf.name
            claim = self._first.claims.get(name)
            mismatch = wrong_shape(self._first, placed, claim, self._first.expected[name])
            if mismatch is not None:
                self._misshapen.append(mismatch)
                continue
            slot = placed.slot if claim is None else placed.slot.shaped(claim.shape)
            # A copy of our own: rules read an output more than once.
            copies[name] = self._stacked(self._first.candidate_heap, slot, self._first.rank).clone()
        return copies

    def _stacked(self, heap: AnyHeap, slot: TensorSlot, rank: int) -> torch.Tensor:
        """The tensors that lie at a slot of the first call and at those of the others, [calls, *shape]."""
        return stacked(heap, slot, [call.plan.offset - self._first.plan.offset for call in self._calls], rank)

    def _read_inputs(self, slot: TensorSlot, rank: int) -> torch.Tensor:
        return self._stacked(self._first.reference_heap, slot, rank)

    def _changed(self, slot: TensorSlot) -> torch.Tensor:
        before, after = (
            self._stacked(heap, slot, self._first.rank)
            for heap in (self._first.reference_heap, self._first.candidate_heap)
        )
        return (before != after).any(dim=1).long()

    def _wrong(self) -> list[torch.Tensor]:
        """The wrong elements of each judged output in each call."""
        import torch

        together = [ruled for ruled in self._ruled if len(self._calls) > 1 and ruled.rule.batched]
        counts = dict(zip((ruled.name for ruled in together), self._wrong_together(together), strict=True))
        for ruled in self._ruled:
            if ruled.name not in counts:
                marks = [self._marks(ruled, call) for call in range(len(self._calls))]
                counts[ruled.name] = torch.stack([mark.sum() for mark in marks])
        return [counts[ruled.name] for ruled in self._ruled]

    def _wrong_together(self, ruled: Sequence[_RuledOutput]) -> Sequence[torch.Tensor]:
        import torch

        if not ruled:
            return ()

        def of_one_call(
            args: Sequence[Mapping[str, Value]],
            expected: Mapping[str, torch.Tensor],
            got: Mapping[str, torch.Tensor],
        ) -> tuple[torch.Tensor, ...]:
            contexts = [(one.rule, self._context(one.name, args, expected, got)) for one in ruled]
            return tuple(rule.wrong(got[context.leaf], context).sum() for rule, context in contexts)

        inputs = (self._arguments, self._expected, self._got)
        counts: Sequence[torch.Tensor] = torch.vmap(of_one_call, in_dims=_first_dims(inputs))(*inputs)
        return counts

    def _marks(self, ruled: _RuledOutput, call: int) -> torch.Tensor:
        """The wrong elements of one output of one call."""
        args, expected, got = _entry((self._arguments, self._expected, self._got), call)
        return ruled.rule.wrong(got[ruled.name], self._context(ruled.name, args, expected, got))

    def _context(
        self,
        name: str,
        args: Sequence[Mapping[str, Value]],
        expected: Mapping[str, torch.Tensor],
        got: Mapping[str, torch.Tensor],
    ) -> CheckContext:
        from pkb_gym.engine.problem.rules import CheckContext

        return CheckContext(self._first.plan.axes[self._first.rank], expected[name], args, expected, got, name)

    def verdicts(self, counts: Sequence[int]) -> list[CallVerdict]:
        """The result for each call.

        Args:
            counts: Values of `self.counts`, one tensor after the other.
        """
        size = len(self._calls)
        elements = sum(self._first.expected[placed.leaf.name].numel() for placed in self._placed)
        right = CallVerdict(len(self._placed), elements, elements, ())
        return [
            self._verdict(index, of_call, elements) if self._misshapen or any(of_call) else right
            for index, of_call in enumerate(counts[index::size] for index in range(size))
        ]

    def _verdict(self, index: int, counts: Sequence[int], elements: int) -> CallVerdict:
        call = self._calls[index]
        mismatches = [
            modified_argument(call, leaf, slot)
            for (leaf, slot), count in zip(self._immutable, counts, strict=False)
            if count
        ]
        mismatches += self._misshapen
        untouched = not mismatches
        right = elements - sum(mismatch.elements for mismatch in self._misshapen)
        for ruled, count in zip(self._ruled, counts[len(self._immutable) :], strict=True):
            if count:
                got, expected = (tensors[ruled.name][index] for tensors in (self._got, self._expected))
                marks = self._marks(ruled, index)
                before = None if ruled.argument is None else self._read_inputs(ruled.argument, call.rank)[index]
                rule = ruled.rule.describe(call.plan.axes[call.rank].dtype)
                mismatches.append(wrong_values(call, ruled.name, rule, got, expected, marks, before))
                right -= mismatches[-1].wrong_elements
                now = got if before is not None else contents(call, ruled.name, got)
                untouched = untouched and is_untouched(call.rank, now, before)
        return CallVerdict(len(self._placed), elements, right, tuple(self._with_words(mismatches, index)), untouched)

    def earnable(self, index: int) -> Iterator[str]:
        """The names of a call's outputs that a kernel gets right by work together with its peers alone.

        Those of another shape are taken for such. A call in which nothing crosses a link has none;
        of a problem without a cost any call of several ranks counts.
        """
        first = self._first
        if "cost" in first.problem.undeclared:
            crosses_links = len(first.plan.axes) > 1
        else:
            crosses_links = bool(sum(first.problem.cost(ax).link_in_bytes for ax in first.plan.axes))
        if not crosses_links:
            return
        yield from (mismatch.output for mismatch in self._misshapen)
        args, expected = _entry((self._arguments, self._expected), index)
        before = {
            ruled.name: self._read_inputs(ruled.argument, first.rank)[index]
            for ruled in self._ruled
            if ruled.argument is not None
        }
        idle = without_work(expected, before, first.rank)
        for ruled in self._ruled:
            context = self._context(ruled.name, args, expected, expected)
            if not ruled.is_local and not JudgedOutput(ruled.rule, context, idle).is_trivial:
                yield ruled.name

    def _with_words(self, mismatches: Sequence[Mismatch], index: int) -> Sequence[Mismatch]:
        """The mismatches of a call, each with the features that distinguish that call."""
        if not mismatches:
            return mismatches
        first = self._first
        args = _entry(self._arguments, index)
        words = call_words(first.problem, first.plan.axes[first.rank], first.rank, args)
        return [mismatch.model_copy(update={"called_with": words}) for mismatch in mismatches]


def _first_dims(value: Any) -> Any:  # noqa: ANN401  # tensors in tuples, lists and dicts of any depth
    """The `in_dims` of `torch.vmap`: 0 for every tensor, None for what is None."""
    if isinstance(value, Mapping):
        return {key: _first_dims(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_first_dims(part) for part in value)
    return None if value is None else 0


def _entry(value: Any, index: int) -> Any:  # noqa: ANN401
    """One call's part of tensors that hold all calls'."""
    if isinstance(value, Mapping):
        return {key: _entry(part, index) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_entry(part, index) for part in value)
    return None if value is None else value[index]
