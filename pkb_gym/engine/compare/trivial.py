"""Outputs that a kernel without any work gets right, by the problem's own rule: nothing is earned with them.

Such a kernel leaves an output as it was, fills it with a constant, or copies an argument of its own rank: the whole, or
the rank's share of one that is as large as the outputs of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pkb_gym.engine.compare.poison import poison_of

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem import Value
    from pkb_gym.engine.problem.rules import Check, CheckContext

CONSTANTS = (0, 1)
"""Values that a kernel may fill its outputs with."""

Outputs: TypeAlias = "Mapping[str, torch.Tensor]"


@dataclass(frozen=True)
class JudgedOutput:
    """One output of one call that a rule judges.

    Attributes:
        rule: Rule of the output.
        context: Data of the call, with the baseline's outputs in place of the candidate's.
        without_work: Outputs of the call by leaf name, of each kernel that looks at no argument (`without_work`).
    """

    rule: Check
    context: CheckContext
    without_work: Sequence[Outputs]

    @property
    def is_trivial(self) -> bool:
        """Whether a kernel without any work gets it right; so does every kernel for an output without elements."""
        return not self.context.expected.numel() or any(map(self._accepts, self._attempts()))

    def _attempts(self) -> Iterator[Outputs]:
        """The outputs of such kernels, by leaf name."""
        expected, leaf = self.context.outputs, self.context.leaf
        yield from self.without_work
        for argument in tensors_of(self.context.own):
            for part in parts_of(argument, self.context.expected, self.context.rank, self.context.world_size):
                yield {**expected, leaf: part}

    def _accepts(self, outputs: Outputs) -> bool:
        from dataclasses import replace

        leaf = self.context.leaf
        context = replace(self.context, candidate=outputs)
        return not bool(self.rule.wrong(outputs[leaf], context).any())


def without_work(expected: Outputs, arguments: Mapping[str, torch.Tensor], rank: int) -> list[Outputs]:
    """Outputs as they lie before a call (poison; the argument, where one is an output), and those of constants.

    Args:
        expected: Outputs of the baseline by leaf name.
        arguments: Arguments that are outputs too, by leaf name, as they were before the call.
        rank: Rank whose outputs they are.
    """
    import torch

    untouched = {name: arguments.get(name, _poisoned(output, rank)) for name, output in expected.items()}
    constant = [{name: torch.full_like(output, value) for name, output in expected.items()} for value in CONSTANTS]
    return [untouched, *constant]


def _poisoned(output: torch.Tensor, rank: int) -> torch.Tensor:
    import torch

    filled = torch.empty_like(output, memory_format=torch.contiguous_format)
    if filled.numel():
        filled.view(-1).view(torch.uint8).fill_(poison_of(rank))
    return filled


def tensors_of(arguments: Mapping[str, Value]) -> Iterator[torch.Tensor]:
    """The tensors of a rank's arguments, those in lists and pairs too."""
    waiting: list[Any] = list(arguments.values())
    for value in waiting:
        if isinstance(value, Sequence) and not isinstance(value, str):
            waiting += value
        elif value is not None and hasattr(value, "numel"):
            yield value


def parts_of(argument: torch.Tensor, like: torch.Tensor, rank: int, world_size: int) -> Iterator[torch.Tensor]:
    """The parts of an argument that fill an output: all of it, or the first and the own share along each dimension.

    Args:
        argument: Tensor to be copied.
        like: Tensor of the shape and dtype of the output.
        rank: Rank whose share is taken.
        world_size: Number of ranks.
    """
    if argument.is_complex() != like.is_complex():
        return
    found = [argument] if argument.numel() == like.numel() else []
    if world_size > 1 and argument.numel() == world_size * like.numel():
        dims = [dim for dim in range(argument.dim()) if argument.shape[dim] % world_size == 0]
        found += [argument.chunk(world_size, dim)[share] for dim in dims for share in {0, rank}]
    for part in found:
        yield part.reshape(like.shape).to(like.dtype)
