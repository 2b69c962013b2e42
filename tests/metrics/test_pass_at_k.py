"""pass@k against the count of all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from pkb_gym.metrics.pass_at_k import pass_at_every_k, pass_at_k, pass_at_k_of_counts


@pytest.mark.parametrize(("n", "c"), [(5, 2), (5, 0), (5, 5), (6, 1), (1, 1)])
def test_it_is_the_share_of_subsets_with_a_right_one(n, c):
    for k in range(1, n + 1):
        subsets = list(combinations(range(n), k))
        share = sum(min(subset) < c for subset in subsets) / len(subsets)
        assert pass_at_k(n, c, k) == pytest.approx(share)
        assert pass_at_every_k(n, c)[k - 1] == pytest.approx(share)
        assert pass_at_k_of_counts(n, np.array([float(c)]), k)[0] == pytest.approx(share)


def test_many_samples_do_not_overflow():
    assert pass_at_every_k(3000, 7)[99] == pytest.approx(pass_at_k(3000, 7, 100))


def test_it_needs_k_samples():
    for of in (lambda: pass_at_k(2, 1, 3), lambda: pass_at_k_of_counts(2, np.zeros(1), 3)):
        with pytest.raises(ValueError, match="pass@3 needs at least 3 samples, got 2"):
            of()
