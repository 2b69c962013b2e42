"""The freedoms that a problem leaves to the arithmetic of its solutions."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem.rules import exact, same_bits


@dataclass(frozen=True)
class Freedom:
    """The freedoms of one problem beyond the order of sums and the choice among equal elements.

    Attributes:
        fast_functions: Whether functions and quotients may be some units in the last place off.
        narrow_parts: Whether sums over parts of a product's inner dimension may be rounded to the dtype.
        narrow_factors: Whether the factors of float32 products may be rounded to bfloat16.
        unstable: Whether equal elements may come in any order although the reference sorts stably.
        wide: Whether everything between arguments and results may be float32.
    """

    fast_functions: bool = True
    narrow_parts: bool = False
    narrow_factors: bool = False
    unstable: bool = False
    wide: bool = True

    def modes(self) -> dict[str, bool]:
        """The arguments of `OtherArithmetic`."""
        return {name: value for name, value in asdict(self).items() if name != "wide"}


FREEDOMS: dict[str, Freedom] = {
    # "A library GEMM may split k and add partial sums in bf16."
    "AllGatherGemm": Freedom(narrow_parts=True),
    "AllGatherGemmAT": Freedom(narrow_parts=True),
    # "bf16 products with fp32 accumulation agree within bf16 tolerance."
    "RingAttention": Freedom(narrow_factors=True),
    "RingAttentionBackwardDP": Freedom(narrow_factors=True),
    "RingAttentionPP": Freedom(narrow_factors=True),
    "RingAttentionTP": Freedom(narrow_factors=True),
    # A sort that is not stable decides the published ranks.
    "GNNNegativeScoring": Freedom(unstable=True),
    # Quotients at the threshold itself count: they are correctly rounded.
    "SAM3IoUSuppression": Freedom(fast_functions=False),
    # Rounding to eight bits is part of the definition, and the reference takes bfloat16 alone.
    "FP8AllGatherParams": Freedom(wide=False),
    "FP8ReduceScatterGrads": Freedom(wide=False),
}
"""Problems of this package whose definition says more, or less, than the default."""


def freedom_of(problem: Problem) -> Freedom:
    """The freedoms of a problem; of one from elsewhere, those that every definition leaves."""
    return FREEDOMS.get(problem.name, Freedom())


def has_float32_answer(problem: Problem) -> bool:
    """Whether some output is a bfloat16 result of arithmetic, which can be done in float32 and rounded at the end."""
    moved = all(isinstance(out.check, exact | same_bits) for out in problem.outputs)
    rounded = any(isinstance(out, InPlace) or out.dtype is None for out in problem.outputs)
    return problem.dtypes[0] == "bfloat16" and rounded and not moved and freedom_of(problem).wide
