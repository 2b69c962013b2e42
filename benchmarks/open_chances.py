"""Problems whose chance of a false alarm is not shown to be small, and why."""

from __future__ import annotations

from collections.abc import Mapping

_SECOND_MOMENT = (
    "Elements are shown, and so are most norms. Those of second moments reach half of what is allowed; few large "
    "elements, of the biases, carry them, so that four trials do not tell how much they vary."
)

WHY_OPEN: Mapping[str, str] = {
    **dict.fromkeys(("DDP", "ZeRO1", "ZeRO2", "FSDPStep"), _SECOND_MOMENT),
    "FP8ReduceScatterGrads": (
        "Elements and counts are shown. The norm of errors reaches 0.27 of what is allowed; gradients differ much in "
        "size and leave few elements that carry it, so that 16 trials do not tell how much it varies."
    ),
    "RingAttentionTP": (
        "Largest share 0.19 of 6.6e5 elements. With a causal mask the first positions, which see few keys, have the "
        "largest results and errors; few elements tell their tail, and the fit leans towards a long one."
    ),
    "KimiDeltaAttention": (
        "Largest share 0.37 of 1.6e6 elements. Results differ in size by head and position, and so do the roundings of "
        "the two parts that are added; the bound is in terms of the rms of all."
    ),
    "Conv3dAllReduce": (
        "Largest share 0.62 of 6e5 elements. A sum that the bias cancels has the rounding error of the sum: the error "
        "hangs on few channels with a large bias, which few trials draw."
    ),
    "CSOAttention": (
        "Largest share 0.32 of 2.6e5 elements at size tiny, of which the published one has 9000 times as many; it is "
        "too large for a CPU."
    ),
}
"""Problem -> reason, with numbers."""
