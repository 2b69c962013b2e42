"""pass@k: the chance that at least one of k samples is right, estimated without bias from n samples."""

from __future__ import annotations

import math

import numpy as np

from pkb_gym.metrics.estimates import Floats


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right, from n samples of which c are.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Source: Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, equation 1.

    Raises:
        ValueError: there are fewer than k samples.

    Example:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4), pass_at_k(4, 2, 2)
        (0.25, 1.0, 0.8333333333333334)
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, got {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pass_at_every_k(samples: int, correct: int) -> Floats:
    """`pass_at_k` for k = 1 .. n, as an array of that length.

        pass@k = 1 - prod over i < k of max(0, n - c - i) / (n - i)

    Source: as `pass_at_k`; the product is its figure 3.

    Example:
        >>> pass_at_every_k(4, 2).tolist()
        [0.5, 0.8333333333333334, 1.0, 1.0]
    """
    drawn = np.arange(samples, dtype=np.float64)
    return np.asarray(1.0 - np.cumprod(np.maximum(0.0, samples - correct - drawn) / (samples - drawn)))


def pass_at_k_of_counts(samples: int, correct: Floats, k: int) -> Floats:
    """`pass_at_k` for an array of counts of right samples.

    Example:
        >>> pass_at_k_of_counts(4, np.array([0.0, 1.0, 2.0]), 2).tolist()
        [0.0, 0.5, 0.8333333333333334]
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, got {samples}")
    missed = np.ones_like(correct)
    for drawn in range(k):
        missed *= np.maximum(0.0, samples - correct - drawn) / (samples - drawn)
    return np.asarray(1.0 - missed)
