"""The statistics of alternating blocks; `time` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.timing import Block, CapturedFields, Timing
from pkb_gym.engine.stages.overhead import Overhead

CONFIDENCE = 0.95
RESAMPLES = 2000
FASTEST = Fraction(2, 5)
"""Share of a side's blocks whose mean is the side's time. Noise only ever adds time: where other work, or a slow mode,
hits up to three fifths of the blocks, that mean stays, while a median jumps. It scatters less than a low quantile,
which rests on one or two blocks (docs/studies.md)."""

TIGHT_RELATIVE = 0.02
"""Timing ends when the interval's half width is below this share of the speedup."""

SYSTEMATIC_RELATIVE = 0.02
"""Two gangs that do the same work differ by up to this, block after block, by where their pages and threads happen to
lie; repeating blocks within one gang cannot see it, so the interval is widened by it (`benchmarks.repeatability`)."""

SLOW_SPEEDUP = 0.5
"""Timing ends too when the whole interval lies below: rewards hardly differ there, and others wait for the machine."""

MIN_BLOCKS = 5
MAX_BLOCKS = {"cpu": 60, "cuda": 16}
"""Number of blocks of each side. Fewer than the least let one slow block ruin the interval: more than one resample in
forty would count a slow block. More of them make the interval narrower, while others wait for the GPUs."""

TARGET_BLOCK_US = 10_000.0
"""Length that the faster side's blocks aim at, far above what the gate costs and a block's first call takes more."""

MAX_BLOCK_US: Mapping[Device, float] = {"cpu": 10_000.0, "cuda": 30_000.0}
"""Length that the slower side's blocks should not exceed for the sake of the faster side's: processors are noisy over
longer stretches than a call, so that many short blocks are more precise than a few long ones."""

MAX_CALLS: Mapping[Device, int] = {"cpu": 256, "cuda": 32, "emulated": 32}
"""Maximum number of calls in a block. On GPUs the inputs and the comparison of a short call take many times as long as
the call; emulated ones are not timed, and have the same heaps."""

MIN_WORK: Mapping[Device, float] = {"cpu": 1 / 2, "cuda": 1 / 8}
"""Share of a block that is taken to be work, so that a noisy overhead never makes a time vanish. On the CPU handovers
scatter by as much as they take. On GPUs they scatter little, and are most of what lies between two short calls: half of
it would be more than such a call."""

GRAPHS, GRAPH_BLOCKS, MAX_REPLAYS = 4, 9, 256
"""Calls of the baseline that are captured, blocks of replays of them, and replays of a block."""

PUBLISHED_WARMUP_CALLS, PUBLISHED_TIMED_CALLS = 500, 100


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval."""

    middle: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half of the interval over the estimate."""
        return (self.high - self.low) / 2 / self.middle


def calls_per_block(device: Device, baseline_us: float, candidate_us: float, most: int) -> int:
    """The number of calls in a block.

    Enough that the faster side's block reaches `TARGET_BLOCK_US`, unless that made the slower side's longer than
    `MAX_BLOCK_US`; never more than `most`, which the memory for fresh inputs allows.
    """
    fast, slow = sorted((max(baseline_us, 0.1), max(candidate_us, 0.1)))
    wanted = min(ceil(TARGET_BLOCK_US / fast), max(ceil(MAX_BLOCK_US[device] / slow), 1))
    return max(1, min(wanted, most, MAX_CALLS[device]))


def replays_per_block(baseline_us: float) -> int:
    """The number of replays of the captured baseline in a block: enough for `TARGET_BLOCK_US`, at its eager time."""
    return max(1, min(ceil(TARGET_BLOCK_US / max(baseline_us, 0.1)), MAX_REPLAYS))


def marginal_call_us(few: int, few_us: float, many: int, many_us: float) -> float:
    """Marginal time per call in microseconds, from a short and a long block.

    The first calls of every block take several times as long. Noise cannot bring it below a quarter of the long
    block's time.

    Args:
        few: Number of calls in the short block.
        few_us: Time per call in the short block, in microseconds.
        many: Number of calls in the longer block.
        many_us: Time per call in the longer block, in microseconds.
    """
    if many <= few:
        return many_us
    return min(max((many * many_us - few * few_us) / (many - few), many_us / 4), many_us)


def per_call_us(device: Device, block_ns: int, calls: int, overhead_us: float) -> float:
    """Microseconds a call, without the overhead of the block; never less than `MIN_WORK` of the block."""
    block_us = block_ns / 1e3
    return max(block_us - overhead_us, MIN_WORK[device] * block_us) / calls


def typical_us(blocks_us: Sequence[float] | NDArray[np.float64]) -> float:
    """A side's time of a call: the mean of its fastest blocks, in microseconds."""
    return float(mean_of_fastest(np.array(blocks_us)))


def mean_of_fastest(blocks_us: NDArray[np.float64], share: Fraction = FASTEST) -> NDArray[np.float64]:
    """The mean of a share of the blocks, rounded up, along the last axis."""
    counted = ceil(share * blocks_us.shape[-1])
    return np.asarray(np.partition(blocks_us, counted - 1, axis=-1)[..., :counted].mean(axis=-1))


def bootstrap_speedup(blocks: Sequence[Block], seed: int = 0) -> Interval:
    """Ratio of `typical_us`, with its percentile bootstrap interval (Efron and Tibshirani 1993, ch. 13).

    Pairs of blocks are drawn together, since they saw the same inputs at nearly the same moment.

    Args:
        blocks: Timed blocks, at least one pair.
        seed: Seed of the resampling; the same samples give the same interval.
    """
    baseline = np.array([block.baseline_us for block in blocks])
    candidate = np.array([block.candidate_us for block in blocks])
    draws = np.random.default_rng(seed).integers(0, len(blocks), (RESAMPLES, len(blocks)))
    ratios = mean_of_fastest(baseline[draws]) / mean_of_fastest(candidate[draws])
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    middle = mean_of_fastest(baseline) / mean_of_fastest(candidate)
    return Interval(float(middle), float(low), float(high))


def bootstrap_speedup_over(baseline_us: Sequence[float], blocks: Sequence[Block], seed: int = 0) -> Interval:
    """Interval of the speedup over a baseline that was timed in other blocks; each side is resampled by itself.

    Args:
        baseline_us: Times per call of the baseline's blocks, in microseconds, at least one.
        blocks: Blocks with the candidate's times, at least one.
        seed: Seed of the resampling.
    """
    baseline = np.array(baseline_us)
    candidate = np.array([block.candidate_us for block in blocks])
    rng = np.random.default_rng(seed)
    upper, lower = (
        mean_of_fastest(side[rng.integers(0, len(side), (RESAMPLES, len(side)))]) for side in (baseline, candidate)
    )
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(upper / lower, [tail, 100 - tail])
    return Interval(typical_us(baseline_us) / typical_us(candidate), float(low), float(high))


def is_tight(blocks: Sequence[Block]) -> bool:
    """Whether enough blocks were timed for the interval to be narrow."""
    return len(blocks) >= MIN_BLOCKS and bootstrap_speedup(blocks).relative_half_width <= TIGHT_RELATIVE


def is_settled(blocks: Sequence[Block]) -> bool:
    """Whether more blocks would change little: the interval is narrow, or the candidate clearly slow."""
    if len(blocks) < MIN_BLOCKS:
        return False
    ratio = bootstrap_speedup(blocks)
    return ratio.relative_half_width <= TIGHT_RELATIVE or ratio.high < SLOW_SPEEDUP


def summarise(
    blocks: Sequence[Block],
    *,
    protocol: Literal["robust", "published"],
    overhead: Overhead,
    on_gpus: bool,
    baseline_alone_us: float | None,
    delivered_bytes: int,
    delayed_pairs: int,
) -> Timing:
    """Times of both sides, their ratio, and its interval."""
    ratio = _widened(bootstrap_speedup(blocks))
    return Timing(
        protocol=protocol,
        baseline_us=typical_us([block.baseline_us for block in blocks]),
        candidate_us=typical_us([block.candidate_us for block in blocks]),
        speedup=ratio.middle,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
        gate_us=overhead.gate_us,
        context_switch_us=overhead.context_switch_us if on_gpus else None,
        baseline_handover_us=overhead.baseline_handover_us,
        candidate_handover_us=overhead.candidate_handover_us,
        baseline_alone_us=baseline_alone_us,
        delivered_bytes=delivered_bytes,
        converged=protocol == "published" or is_tight(blocks),
        delayed_pairs=delayed_pairs,
        blocks=tuple(blocks),
    )


def with_captured_baseline(timing: Timing, captured_us: Sequence[float], fields: CapturedFields) -> Timing:
    """The timing with a captured baseline, and the interval of the speedup over it.

    Args:
        timing: Timing of a candidate.
        captured_us: Time per call of the captured baseline, in microseconds, for each block.
        fields: Fields of the timing that belong to that baseline.
    """
    ratio = _widened(bootstrap_speedup_over(captured_us, timing.blocks))
    return timing.model_copy(update=dict(zip(fields, (typical_us(captured_us), ratio.low, ratio.high), strict=True)))


def _widened(ratio: Interval) -> Interval:
    """The bootstrap's interval, widened on both sides by `SYSTEMATIC_RELATIVE`."""
    low = min(ratio.low, ratio.middle) * (1 - SYSTEMATIC_RELATIVE)
    return Interval(ratio.middle, low, max(ratio.high, ratio.middle) * (1 + SYSTEMATIC_RELATIVE))
