"""Problems whose chance of a false alarm is not shown to be small, and why."""

from __future__ import annotations

from collections.abc import Mapping

WHY_OPEN: Mapping[str, str] = {
    "KimiDeltaAttention": (
        "Largest share 0.14 of 1.6e6 elements. Results differ in size by head and position, and so do the roundings of "
        "the two parts that are added; the bound is in terms of the rms of all."
    ),
    "Conv3dAllReduce": (
        "Largest share 0.23 of 6e5 elements. A sum that the bias cancels has the rounding error of the sum: the error "
        "hangs on few channels with a large bias, which few trials draw."
    ),
    "CSOAttention": (
        "Largest share 0.11 of 2.6e5 elements at size tiny, of which the published one has 9000 times as many; it is "
        "too large for a CPU."
    ),
}
"""Problem -> reason, with numbers."""
