"""A rule for results that are gathered: what each rank contributes is held to the norm of its own errors.

Single elements need room for the largest rounding, which leaves as much to a code of half the bits. Roundings of a
whole block have a known norm, and so has such a code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, far, wide

if TYPE_CHECKING:
    import torch

ROOM_OF_FEW = 2.0
"""Additional room for the norm of few elements, over the square root of their number."""


@dataclass(frozen=True)
class blocks_close:  # noqa: N801  # reads as a function where rules are declared
    """||got - expected|| <= rel (1 + 2 / sqrt(elements)) ||expected|| for each rank's block, scaled by dtype.

    A bad block is all wrong.

    Attributes:
        rel: Relative tolerance for bfloat16.
        dim: Dimension along which the ranks' blocks, all of one size, follow one another.
    """

    batched: ClassVar[bool] = True

    rel: float
    dim: int

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        rel = self.rel * DTYPE_SCALE[dtype]
        return f"blocks_close(rel={rel:.3g} (1 + 2 / sqrt(elements)), for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        import torch

        ranks_first = wide(got).movedim(self.dim, 0)
        values = ranks_first.reshape(context.world_size, -1)
        expected = wide(context.expected).movedim(self.dim, 0).reshape(context.world_size, -1)
        rel = self.rel * (1 + ROOM_OF_FEW * max(1, values.shape[1]) ** -0.5) * DTYPE_SCALE[context.ax.dtype]
        bad = far(values, expected, rel * torch.linalg.vector_norm(expected, dim=1, keepdim=True), dim=1)
        return bad.expand_as(values).reshape(ranks_first.shape).movedim(0, self.dim)
