"""A first look at many calls at once: is there anything wrong with any of them?

To launch a kernel costs the same for one small call as for fifty, and a rule launches dozens. So the tensors of calls
that are alike are taken as one tensor with a dimension more, over which the rules are vectorised (`torch.vmap`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pkb_gym.engine.compare.calls import Call, arguments, immutable_leaves, rule_of
from pkb_gym.engine.compare.layout import Slot, result_slots
from pkb_gym.engine.compare.stacked import stacked

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.values import Value
    from pkb_gym.engine.rankside.devices import AnyHeap

SCREENED_BYTES = {"cpu": 1 << 19, "cuda": 256 << 20}
"""Of each rank's arguments and outputs that are looked at together: rules make several copies of them, which on the CPU
should stay in its caches."""


def alike(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Runs of consecutive calls that can be looked at together, no more of them than `SCREENED_BYTES` allow."""
    for (_, claimed), group in itertools.groupby(calls, lambda call: (id(call.plan.axes), any(call.said.values()))):
        run = list(group)
        plain = not claimed and all(slot.leaf.shape is not None for slot in _result_slots(run[0]))
        room = SCREENED_BYTES["cpu" if run[0].theirs.cuda_device is None else "cuda"]
        most = max(1, room // max(1, run[0].plan.nbytes)) if plain else 1  # a call may have nothing but empty tensors
        yield from (run[first : first + most] for first in range(0, len(run), most))


def _result_slots(call: Call) -> list[Slot]:
    return [slot for _, slot in result_slots(call.problem, call.plan, call.rank)]


class Screen:
    """One rank's outputs of alike calls against the baseline's.

    Args:
        calls: at least one; of equal axes, one behind the other in the heaps.

    Attributes:
        calls: these.
        arguments: number of the immutable arguments.
        outputs, elements: of one call.
        counts: integer tensors [calls]: of each immutable argument whether it was changed, then of each output that
            has a rule its wrong elements.

    Raises:
        Exception: of any kind, where a rule cannot be vectorised; the calls must be compared one by one.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        import torch

        first = calls[0]
        self.calls = calls
        # Copies of our own: rules read an output more than once.
        self._candidate = {
            slot.leaf.name: self._read(first.theirs, slot.to_json(), first.rank).clone()
            for slot in _result_slots(first)
        }
        expected = {name: torch.stack([call.expected[name] for call in calls]) for name in self._candidate}
        args = [
            arguments(first.problem, first.plan, rank, lambda slot, of: self._read(first.mine, slot, of))
            for rank in range(len(first.plan.axes))
        ]
        self.counts = []
        for _, slot in immutable_leaves(first.problem, first.plan, first.rank):
            before, after = (self._read(heap, slot, first.rank) for heap in (first.mine, first.theirs))
            self.counts.append((before != after).any(dim=1).long())
        self.arguments = len(self.counts)
        self.outputs = len(expected)
        self.elements = sum(first.expected[name].numel() for name in expected)
        self.counts += _wrong_elements(first, args, expected, self._candidate)

    def copies(self, index: int) -> dict[str, torch.Tensor]:
        """The candidate's outputs of one call by leaf name, as they were when they were looked at."""
        return {name: tensor[index] for name, tensor in self._candidate.items()}

    def _read(self, heap: AnyHeap, slot: Mapping[str, Any], rank: int) -> torch.Tensor:
        """The tensors that lie at a slot of the first call and at those of the others, [calls, *shape]."""
        return stacked(heap, slot, len(self.calls), self.calls[0].plan.nbytes, rank)


def _wrong_elements(
    first: Call,
    args: Sequence[Mapping[str, Value]],
    expected: Mapping[str, torch.Tensor],
    candidate: Mapping[str, torch.Tensor],
) -> list[torch.Tensor]:
    """Of each output that has a rule, in declared order: the wrong elements of each call."""
    import torch

    from pkb_gym.engine.problem.rules import CheckContext

    ax = first.plan.axes[first.rank]
    judged = [
        (rule, slot.leaf.name)
        for out, slot in result_slots(first.problem, first.plan, first.rank)
        if (rule := rule_of(out, first.protocol)) is not None
    ]

    def of_one_call(
        args: Sequence[Mapping[str, Value]], outputs: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        contexts = [(rule, CheckContext(ax, outputs[name], args, outputs, got, name)) for rule, name in judged]
        return [rule.wrong(got[context.leaf], context).sum() for rule, context in contexts]

    if not judged:
        return []
    inputs = (args, expected, candidate)
    counts: list[torch.Tensor] = torch.vmap(of_one_call, in_dims=_first_dims(inputs))(*inputs)
    return counts


def _first_dims(value: Any) -> Any:  # noqa: ANN401  # tensors in tuples, lists and dicts of any depth
    """As `torch.vmap` wants it: 0 for every tensor, None for what is None."""
    if isinstance(value, Mapping):
        return {key: _first_dims(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_first_dims(part) for part in value)
    return None if value is None else 0
