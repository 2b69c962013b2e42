"""The statistics of timing: calls a block, the bootstrap, when to stop."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.timing import CAPTURED, Block, Timing
from pkb_gym.engine.stages import timing_statistics
from pkb_gym.engine.stages.overhead import Overhead


def blocks(*ratios: float) -> list[Block]:
    return [Block(calls=10, baseline_us=100 * ratio, candidate_us=100) for ratio in ratios]


@pytest.mark.parametrize(
    ("device", "baseline_us", "candidate_us", "most", "calls"),
    [
        ("cpu", 1000, 1000, 256, 10),  # both reach the target length
        ("cuda", 500, 500, 256, 20),
        ("cpu", 10, 10, 1000, 256),  # never more than MAX_CALLS
        ("cuda", 10, 10, 1000, 32),
        ("cuda", 1000, 10, 256, 30),  # the slower side must not run longer than it may
        ("cpu", 1000, 10, 256, 10),
        ("cuda", 1e6, 1e6, 256, 1),
        ("cpu", 1e6, 1, 256, 1),
        ("cpu", 100, 100, 7, 7),  # nor more than memory allows
        ("cuda", 0, 0, 256, 32),
    ],
)
def test_calls_per_block(device, baseline_us, candidate_us, most, calls):
    assert timing_statistics.calls_per_block(device, baseline_us, candidate_us, most) == calls


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
def test_the_marginal_call_is_separated_from_the_first_ones(few, few_us, many, many_us, found):
    assert timing_statistics.marginal_call_us(few, few_us, many, many_us) == pytest.approx(found)


@pytest.mark.parametrize(("baseline_us", "replays"), [(100, 100), (1000, 10), (10, 256), (1e6, 1), (0, 256)])
def test_replays_per_block(baseline_us, replays):
    assert timing_statistics.replays_per_block(baseline_us) == replays


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_overhead_of_a_block_is_subtracted(device):
    assert timing_statistics.per_call_us(device, 1_000_000, 10, 100.0) == pytest.approx(90)
    assert timing_statistics.per_call_us(device, 1_000_000, 10, 300.0) == pytest.approx(70)


@pytest.mark.parametrize(
    ("device", "overhead_us", "found_us"), [("cpu", 900, 50), ("cuda", 800, 20), ("cuda", 900, 12.5)]
)
def test_a_share_of_a_block_is_work_whatever_is_subtracted(device, overhead_us, found_us):
    """A noisy overhead never makes a time vanish; on GPUs most of a block of short calls is overhead."""
    assert timing_statistics.per_call_us(device, 1_000_000, 10, overhead_us) == pytest.approx(found_us)


def test_bootstrap_of_equal_samples_has_no_width():
    interval = timing_statistics.bootstrap_speedup(blocks(*[2.0] * 8))
    assert (interval.low, interval.middle, interval.high) == (2.0, 2.0, 2.0)
    assert interval.relative_half_width == 0


@pytest.mark.parametrize(("count", "counted"), [(1, 1), (2, 1), (3, 2), (5, 2), (10, 4), (15, 6), (16, 7)])
def test_a_side_s_time_is_the_mean_of_its_fastest_blocks(count, counted):
    """Of the times ... 2, 1 two fifths count, rounded up."""
    times = [float(time) for time in range(count, 0, -1)]
    assert timing_statistics.typical_us(times) == pytest.approx((1 + counted) / 2)


def test_slow_blocks_of_either_side_do_not_count():
    undisturbed = [Block(calls=10, baseline_us=200, candidate_us=100)] * 5
    noisy = [Block(calls=10, baseline_us=900, candidate_us=100)] * 9 + [
        Block(calls=10, baseline_us=200, candidate_us=700)
    ] * 9
    interval = timing_statistics.bootstrap_speedup(undisturbed + noisy)
    assert interval.middle == pytest.approx(2.0)
    assert interval == timing_statistics.bootstrap_speedup(undisturbed + noisy), "samples fix the interval"


def test_one_slow_block_does_not_ruin_the_interval():
    """Of three blocks one slow one did: a speedup of 6.5 with a low end of 0.35."""
    few = [Block(calls=10, baseline_us=200, candidate_us=100)] * (timing_statistics.MIN_BLOCKS - 1)
    for slow in (
        Block(calls=10, baseline_us=200, candidate_us=2000),
        Block(calls=10, baseline_us=4000, candidate_us=100),
    ):
        interval = timing_statistics.bootstrap_speedup([*few, slow])
        assert (interval.low, interval.middle, interval.high) == (2.0, 2.0, 2.0)


def test_bootstrap_interval_narrows_with_samples():
    few = timing_statistics.bootstrap_speedup(blocks(*[0.9, 1.0, 1.1] * 2))
    many = timing_statistics.bootstrap_speedup(blocks(*[0.9, 1.0, 1.1] * 20))
    assert many.high - many.low < few.high - few.low


def test_is_tight_needs_enough_blocks_that_agree():
    assert not timing_statistics.is_tight(blocks(*[2.0] * (timing_statistics.MIN_BLOCKS - 1)))
    assert timing_statistics.is_tight(blocks(*[2.0] * timing_statistics.MIN_BLOCKS))
    assert not timing_statistics.is_tight(blocks(1.0, 2.0, 1.5, 0.7, 2.4))


def test_a_clearly_slow_candidate_is_settled_however_its_times_scatter():
    scattered = blocks(*[0.1, 0.3, 0.15, 0.25, 0.2])
    assert not timing_statistics.is_tight(scattered)
    assert timing_statistics.is_settled(scattered)
    assert not timing_statistics.is_settled(scattered[:-1]), "one slow block could make it so"
    assert not timing_statistics.is_settled(blocks(0.3, 0.7, 0.55, 0.6, 0.45)), "it may be half as fast as the baseline"
    assert timing_statistics.is_settled(blocks(*[2.0] * timing_statistics.MIN_BLOCKS))


OVERHEAD = Overhead(gate_us=5, context_switch_us=2, baseline_handover_us=1, candidate_handover_us=3, pad_ns=0)


def summary(samples: list[Block], delivered_bytes: int = 0) -> Timing:
    return timing_statistics.summarise(
        samples,
        protocol="robust",
        overhead=OVERHEAD,
        on_gpus=True,
        baseline_alone_us=150,
        delivered_bytes=delivered_bytes,
        delayed_pairs=0,
    )


def test_summary() -> None:
    samples = blocks(2.0, 2.1, 2.2, 2.0, 2.3)
    found = summary(samples)
    assert (found.baseline_us, found.candidate_us, found.speedup) == (200.0, 100.0, 2.0)
    interval = timing_statistics.bootstrap_speedup(samples)
    assert found.speedup_low == pytest.approx(interval.low * (1 - timing_statistics.SYSTEMATIC_RELATIVE))
    assert found.speedup_high == pytest.approx(interval.high * (1 + timing_statistics.SYSTEMATIC_RELATIVE))
    assert not found.converged
    assert len(found.blocks) == 5
    assert (found.gate_us, found.context_switch_us) == (5, 2)
    assert (found.baseline_handover_us, found.candidate_handover_us) == (1, 3)


@pytest.mark.parametrize(("delivered_bytes", "delivers"), [(0, False), (4096, True)])
def test_times_with_copies_of_results_say_so(delivered_bytes: int, delivers: bool) -> None:
    found = summary(blocks(2.0), delivered_bytes)
    assert (found.delivered_bytes, found.delivers) == (delivered_bytes, delivers)


def test_the_captured_baseline_has_a_speedup_and_an_interval_of_its_own() -> None:
    timing = timing_statistics.with_captured_baseline(summary(blocks(2.0, 2.0, 2.0)), [120.0] * 3, CAPTURED)
    widening = timing_statistics.SYSTEMATIC_RELATIVE
    assert timing.baseline_graph_us == 120.0
    assert timing.graph_speedup_low == pytest.approx(1.2 * (1 - widening))
    assert timing.graph_speedup_high == pytest.approx(1.2 * (1 + widening))
    assert timing.speedup == 2.0, "over the eager one, as before"


def test_either_side_s_scatter_widens_the_interval_over_the_captured_baseline() -> None:
    steady, scattered = blocks(*[2.0] * 8), [Block(calls=10, baseline_us=200, candidate_us=us) for us in (90, 110) * 4]
    widths = [
        timing_statistics.bootstrap_speedup_over(captured_us, samples).relative_half_width
        for captured_us, samples in (
            ([120.0] * 8, steady),
            ([110.0, 130.0] * 4, steady),
            ([120.0] * 8, scattered),
        )
    ]
    assert widths[0] == 0 and min(widths[1:]) > 0.01


def test_a_captured_baseline_is_recorded_with_its_interval() -> None:
    record = summary(blocks(2.0)).model_dump() | {"baseline_graph_us": 120.0}
    with pytest.raises(ValueError, match="known together or not at all"):
        Timing.model_validate(record)
