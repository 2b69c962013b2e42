"""The statistics of timing: calls a block, the bootstrap, when to stop."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.feedback import Block
from pkb_gym.engine.stages import timing_statistics


def blocks(*ratios: float) -> list[Block]:
    return [Block(calls=10, baseline_us=100 * ratio, candidate_us=100) for ratio in ratios]


@pytest.mark.parametrize(
    ("baseline_us", "candidate_us", "most", "calls"),
    [
        (1000, 1000, 256, 10),  # both reach the target length
        (100, 100, 256, 100),
        (10, 10, 256, 256),  # never more than MAX_CALLS
        (1000, 10, 256, 30),  # the slower side must not run longer than it may
        (1e6, 1e6, 256, 1),
        (1e6, 1, 256, 1),
        (100, 100, 7, 7),  # nor more than memory allows
        (0, 0, 256, 256),
    ],
)
def test_calls_per_block(baseline_us, candidate_us, most, calls):
    assert timing_statistics.calls_per_block(baseline_us, candidate_us, most) == calls


@pytest.mark.parametrize(
    ("few", "few_us", "many", "many_us", "found"),
    [
        (2, 400, 22, 80, 48),  # 800 us for the first two, 960 for the next twenty
        (2, 100, 22, 100, 100),
        (2, 40, 22, 80, 80),  # blocks that grow slower as they run
        (2, 2000, 22, 80, 20),  # a short block that was disturbed
        (2, 300, 2, 200, 200),
        (2, 300, 1, 200, 200),
    ],
)
def test_the_marginal_call_is_told_from_the_first_ones(few, few_us, many, many_us, found):
    assert timing_statistics.marginal_call_us(few, few_us, many, many_us) == pytest.approx(found)


def test_the_overhead_of_a_block_is_subtracted():
    assert timing_statistics.per_call_us(1_000_000, 10, 100.0) == pytest.approx(90)
    assert timing_statistics.per_call_us(1_000_000, 10, 300.0) == pytest.approx(70)


def test_half_of_a_block_is_work_whatever_is_subtracted():
    """A noisy overhead never makes a time vanish."""
    assert timing_statistics.per_call_us(1_000_000, 10, 900.0) == pytest.approx(50)


def test_bootstrap_of_equal_samples_has_no_width():
    interval = timing_statistics.bootstrap_speedup(blocks(*[2.0] * 8))
    assert (interval.low, interval.middle, interval.high) == (2.0, 2.0, 2.0)
    assert interval.relative_half_width == 0


def test_slow_blocks_of_either_side_do_not_count():
    quiet = [Block(calls=10, baseline_us=200, candidate_us=100)] * 5
    noisy = [Block(calls=10, baseline_us=900, candidate_us=100)] * 5 + [
        Block(calls=10, baseline_us=200, candidate_us=700)
    ] * 5
    interval = timing_statistics.bootstrap_speedup(quiet + noisy)
    assert interval.middle == pytest.approx(2.0)
    assert interval == timing_statistics.bootstrap_speedup(quiet + noisy), "the same samples give the same interval"


def test_bootstrap_interval_narrows_with_samples():
    few = timing_statistics.bootstrap_speedup(blocks(*[0.9, 1.0, 1.1] * 2))
    many = timing_statistics.bootstrap_speedup(blocks(*[0.9, 1.0, 1.1] * 20))
    assert many.high - many.low < few.high - few.low


def test_is_tight_needs_enough_blocks_that_agree():
    assert not timing_statistics.is_tight(blocks(*[2.0] * (timing_statistics.MIN_BLOCKS - 1)))
    assert timing_statistics.is_tight(blocks(*[2.0] * timing_statistics.MIN_BLOCKS))
    assert not timing_statistics.is_tight(blocks(1.0, 2.0, 1.5, 0.7, 2.4))


def test_summary():
    samples = blocks(2.0, 2.0, 2.2, 1.8, 2.0)
    summary = timing_statistics.summarise(samples, protocol="robust", gate_us=5, baseline_alone_us=150, delivers=True)
    assert (summary.baseline_us, summary.candidate_us, summary.speedup) == (200.0, 100.0, 2.0)
    interval = timing_statistics.bootstrap_speedup(samples)
    assert summary.speedup_low == pytest.approx(interval.low * (1 - timing_statistics.SYSTEMATIC_RELATIVE))
    assert summary.speedup_high == pytest.approx(interval.high * (1 + timing_statistics.SYSTEMATIC_RELATIVE))
    assert not summary.converged
    assert len(summary.blocks) == 5
