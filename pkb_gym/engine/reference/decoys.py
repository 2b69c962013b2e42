"""The contents of withheld lines before they arrive: numbers of the tensor's kind that do not depend on its values.

A decoy that was another call's value would hand that over before its time, and a kernel could work ahead with it. A
constant would show which lines are withheld.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.problem import ITEMSIZE

DRAWN_BITS: Mapping[str, int] = {"bfloat16": 4, "float16": 6, "float32": 12, "float64": 28}
"""Low bits of the mantissa that are drawn, by dtype. Whole numbers may be indices, and stay in their range."""

PARTS: Mapping[str, str] = {"complex64": "float32", "complex128": "float64"}


def draw_decoys(
    dtype: str, lines: NDArray[np.uint8], inside: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Decoys of lines of one tensor: each element is that of any of the lines, and its low bits are drawn.

    Args:
        dtype: Name of the tensor's dtype.
        lines: [lines, line bytes] in all calls of a block.
        inside: [lines]: how many bytes of each, the first, belong to the tensor; the others stay as they are.
        rng: Draws them.
    """
    part = PARTS.get(dtype, dtype)
    words = np.dtype(f"u{ITEMSIZE[part]}")
    elements = lines.view(words)
    is_inside = np.arange(elements.shape[1]) < inside[:, None] // words.itemsize
    pool = elements[is_inside]
    drawn = pool[rng.integers(0, max(1, len(pool)), len(pool))]
    # Others than those in which elements differ would show the decoys of floats that are whole numbers, for instance.
    varying = np.bitwise_or.reduce(pool, initial=0) & ~np.bitwise_and.reduce(pool, initial=~words.type(0))
    decoys = elements.copy()
    decoys[is_inside] = drawn ^ (rng.integers(0, 1 << DRAWN_BITS.get(part, 0), len(pool), words) & varying)
    return decoys.view(np.uint8)
