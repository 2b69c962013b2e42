"""The statistics of alternating blocks, on known samples."""

from __future__ import annotations

import numpy as np
import pytest

from pkb_gym.engine import timing
from pkb_gym.engine.feedback import Block
from pkb_gym.engine.timing import bootstrap_median, calls_per_block, is_tight, summarise


def blocks(*ratios: float, candidate_us: float = 100.0) -> list[Block]:
    return [Block(calls=10, baseline_us=ratio * candidate_us, candidate_us=candidate_us) for ratio in ratios]


@pytest.mark.parametrize(
    ("baseline_us", "candidate_us", "most", "calls"),
    [
        (100.0, 100.0, 1000, 100),  # 10 ms
        (1000.0, 100.0, 1000, 60),  # ... but the slower side not beyond 60 ms
        (100.0, 1000.0, 1000, 60),
        (1.0, 1.0, 1000, timing.MAX_CALLS),
        (100.0, 100.0, 7, 7),  # the memory for inputs
        (5e6, 5e6, 1000, 1),
        (1.0, 5e6, 1000, 1),
        (0.0, 0.0, 1000, timing.MAX_CALLS),  # a clock that saw nothing
        (100.0, 100.0, 0, 1),
    ],
)
def test_calls_per_block(baseline_us: float, candidate_us: float, most: int, calls: int) -> None:
    assert calls_per_block(baseline_us, candidate_us, most) == calls


def test_one_sample_is_its_own_interval() -> None:
    interval = bootstrap_median([1.5])
    assert (interval.low, interval.middle, interval.high) == (1.5, 1.5, 1.5)
    assert interval.relative_half_width == 0


def test_equal_samples_have_no_width() -> None:
    interval = bootstrap_median([2.0] * 10)
    assert (interval.low, interval.middle, interval.high) == (2.0, 2.0, 2.0)


def test_the_median_ignores_a_slow_mode() -> None:
    """A few blocks in a slow mode must not move the result, as they would move a mean."""
    interval = bootstrap_median([1.0] * 17 + [10.0] * 3)
    assert interval.middle == 1.0
    assert interval.high == 1.0


def test_the_interval_lies_within_the_samples_and_is_the_same_again() -> None:
    samples = list(np.random.default_rng(1).lognormal(0.0, 0.1, 30))
    interval = bootstrap_median(samples)
    assert min(samples) <= interval.low <= interval.middle <= interval.high <= max(samples)
    assert interval == bootstrap_median(samples)
    assert interval.middle == pytest.approx(np.median(samples))


def test_the_interval_covers_the_true_median() -> None:
    """95 % of intervals; of 200 experiments, 170 at the very least."""
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        interval = bootstrap_median(generator.normal(1.0, 0.05, 25))
        covered += interval.low <= 1.0 <= interval.high
    assert covered >= 170


def test_more_samples_make_it_narrower() -> None:
    generator = np.random.default_rng(3)
    few, many = (bootstrap_median(generator.normal(1.0, 0.05, n)) for n in (8, 200))
    assert many.relative_half_width < few.relative_half_width / 2


def test_tight() -> None:
    assert not is_tight([])
    assert not is_tight(blocks(1.0, 1.0, 1.0, 1.0))  # too few, however equal
    assert is_tight(blocks(*[1.0] * timing.MIN_BLOCKS))
    assert not is_tight(blocks(1.0, 2.0, 1.0, 2.0, 1.5, 1.0, 2.0))


def test_summary() -> None:
    summary = summarise(
        blocks(2.0, 2.0, 2.0, 2.0, 2.0, 4.0), protocol="robust", gate_us=30.0, baseline_alone_us=190.0, delivers=True
    )
    assert (summary.candidate_us, summary.baseline_us, summary.speedup) == (100.0, 200.0, 2.0)
    assert summary.speedup_low == pytest.approx(2.0 * (1 - timing.SYSTEMATIC_RELATIVE))
    assert summary.speedup_high >= 2.0 * (1 + timing.SYSTEMATIC_RELATIVE)
    assert (summary.gate_us, summary.baseline_alone_us, summary.delivers) == (30.0, 190.0, True)
    assert len(summary.blocks) == 6


def test_the_published_protocol_counts_calls_instead() -> None:
    wide = blocks(1.0, 3.0, 1.0, 3.0, 2.0)
    robust = summarise(wide, protocol="robust", gate_us=0, baseline_alone_us=None, delivers=False)
    published = summarise(wide, protocol="published", gate_us=0, baseline_alone_us=None, delivers=False)
    assert (robust.converged, published.converged) == (False, True)
