"""Rules for results whose rows differ in size, and so do the roundings of what is added up to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rms, rows_close, wide

if TYPE_CHECKING:
    import torch

ROWS_OF_ONE_SPARED, SPARED_FACTOR = 1000, 3
"""Number of rows of which one may be off by more, and how many times as much, see `summed_rows_close`."""


@dataclass(frozen=True)
class close_by_rows:  # noqa: N801  # reads as a function where rules are declared
    """|got - expected| <= rtol |expected| + atol_rms (rms(expected) + rms(its row)) / 2, scaled by dtype.

    A row is the last dimension. The mean over all leaves room for rows whose terms cancel, that over the row for rows
    that are larger than others, whose errors are larger too.
    """

    batched: ClassVar[bool] = True

    rtol: float
    atol_rms: float

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        scale = DTYPE_SCALE[dtype]
        return f"close_by_rows(rtol={self.rtol * scale:.3g}, atol_rms={self.atol_rms * scale:.3g}, for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        expected = wide(context.expected)
        of_rows = expected.square().mean(dim=-1, keepdim=True).sqrt() if expected.numel() else expected
        bound = self.rtol * expected.abs() + self.atol_rms * (rms(expected) + of_rows) / 2
        return outside(wide(got), expected, DTYPE_SCALE[context.ax.dtype] * bound)


@dataclass(frozen=True)
class summed_rows_close(rows_close):  # noqa: N801
    """||got - expected|| <= rel max(||expected||, its rms over rows) for each row, scaled by dtype.

    A bad row is all wrong. A row is the last dimension, and a sum of few terms: where these cancel it is small, and
    their errors are not. Terms may also be larger than any row, which a result does not show: of every whole
    thousand rows one may be off by up to three times as much.
    """

    def describe(self, dtype: str = "bfloat16") -> str:
        """The rule in a few words, for the agent."""
        rel = self.rel * DTYPE_SCALE[dtype]
        spared = f"of one row in {ROWS_OF_ONE_SPARED} {SPARED_FACTOR * rel:.3g}"
        return f"summed_rows_close(rel={rel:.3g}, {spared}, for {dtype})"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        bad = self.beyond(1.0, got, context)
        rows = bad[..., :1]
        return bad & (self.beyond(SPARED_FACTOR, got, context) | (rows.sum() > rows.numel() // ROWS_OF_ONE_SPARED))

    def size(self, norms: torch.Tensor) -> torch.Tensor:
        """The norm that a row's error is held to."""
        import torch

        return torch.maximum(norms, norms.square().mean().sqrt()) if norms.numel() else norms
