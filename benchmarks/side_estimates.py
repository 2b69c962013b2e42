"""How far speedups scatter, and how often intervals hold them, by the statistic over blocks.

From block times that were kept: on the CPU evaluations as they were measured (`benchmarks.reward_noise_collect`), of
expert kernels and of the baseline itself; on GPUs the blocks of baselines (`benchmarks.gpu_baselines`) whose calls take
at least 50 us, resampled. There the candidate is the baseline itself ("eager") or its CUDA graph ("graph").

python -m benchmarks.side_estimates
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.stages.timing_statistics import CONFIDENCE, FASTEST, SYSTEMATIC_RELATIVE, mean_of_fastest

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Over the last axis."""

SHARES = (Fraction(1, 4), Fraction(1, 3), Fraction(2, 5), Fraction(1, 2), Fraction(3, 4), Fraction(1))
QUANTILES = (0.25, 0.5)
ENGINE = f"mean of the fastest {FASTEST}"

GPU_FILES = {"2 GPUs": "gpu_baselines_2_ranks", "4 GPUs": "gpu_baselines"}
KINDS = ("eager", "graph")
LEAST_US = 50.0
LEAST_BLOCKS = 10
BLOCKS = (7, 12)
"""Pairs of an evaluation on GPUs."""
DRAWS = 200
INTERVALS, RESAMPLES = 40, 400
"""Evaluations of each candidate whose intervals are made, at most, and resamples of each."""


def quantile(share: float) -> Statistic:
    """That of the blocks' times."""
    return lambda blocks_us: np.asarray(np.quantile(blocks_us, share, axis=-1))


STATISTICS: Mapping[str, Statistic] = {
    **{f"quantile {share}": quantile(share) for share in QUANTILES},
    "fastest": lambda blocks_us: np.asarray(blocks_us.min(axis=-1)),
    **{f"mean of the fastest {share}": partial(mean_of_fastest, share=share) for share in SHARES},
}

Sides = tuple[list[Array], list[Array]]
"""Block times of the baseline and of the candidate, evaluation by evaluation."""


def cpu_evaluations(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Sides]]:
    """Repeated evaluations of each candidate, by size."""
    for row in rows:
        pairs = [np.array(evaluation) for evaluation in row["evaluations"]]
        yield f"CPU, {row['size']}", ([each[:, 0] for each in pairs], [each[:, 1] for each in pairs])


def gpu_evaluations(rows: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> Iterator[tuple[str, Sides]]:
    """Evaluations drawn from the blocks of each baseline, by kind of the candidate and number of pairs."""
    for row in rows:
        baseline = np.array((row.get("eager") or {}).get("block_us", []))
        for kind in KINDS:
            candidate = np.array((row.get(kind) or {}).get("block_us", []))
            if min(len(baseline), len(candidate)) < LEAST_BLOCKS or np.median(baseline) < LEAST_US:
                continue
            for blocks in BLOCKS:
                drawn = (list(rng.choice(side, (DRAWS, blocks))) for side in (baseline, candidate))
                yield f"{kind}, {blocks} pairs", (next(drawn), next(drawn))


def speedups(sides: Sides, statistic: Statistic) -> Array:
    """Of each evaluation."""
    pairs = zip(*sides, strict=True)
    return np.array([float(statistic(baseline) / statistic(candidate)) for baseline, candidate in pairs])


def covered(sides: Sides, statistic: Statistic, rng: np.random.Generator) -> float:
    """The share of evaluations whose interval, made as the engine does, holds the median of all their speedups."""
    middle, tail = float(np.median(speedups(sides, statistic))), 50 * (1 - CONFIDENCE)
    held = []
    for baseline, candidate in list(zip(*sides, strict=True))[:INTERVALS]:
        pairs = rng.integers(0, len(baseline), (RESAMPLES, len(baseline)))
        low, high = np.percentile(statistic(baseline[pairs]) / statistic(candidate[pairs]), [tail, 100 - tail])
        held.append(low * (1 - SYSTEMATIC_RELATIVE) <= middle <= high * (1 + SYSTEMATIC_RELATIVE))
    return float(np.mean(held))


def study(evaluations: Sequence[tuple[str, Sides]]) -> dict[str, Any]:
    """By group: candidates, and by statistic how speedups scatter, their level, and intervals that hold the speedup.

    The coefficient of variation is the median over candidates; `level` is the speedup over that by the lower quartile,
    likewise. `covered` is the share of intervals that hold the median of a candidate's speedups.
    """
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for group in dict.fromkeys(group for group, _ in evaluations):
        members = [sides for of_group, sides in evaluations if of_group == group]
        found[group] = {"candidates": len(members)}
        quartiles = [speedups(sides, quantile(0.25)) for sides in members]
        for name, statistic in STATISTICS.items():
            measured = [speedups(sides, statistic) for sides in members]
            pairs = zip(measured, quartiles, strict=True)
            levels = [np.median(each) / np.median(quartile) for each, quartile in pairs]
            found[group][name] = {
                "coefficient_of_variation": round(float(np.median([_variation(each) for each in measured])), 4),
                "level": round(float(np.median(levels)), 3),
                "covered": round(float(np.mean([covered(sides, statistic, rng) for sides in members])), 3),
            }
    return found


def _variation(values: Array) -> float:
    return float(values.std(ddof=1) / values.mean())


def main() -> None:
    """Reads the samples, studies them and saves."""
    make_parser("side_estimates", __doc__).parse_args()
    rng = np.random.default_rng(0)
    samples = json.loads((RESULTS / "reward_noise_samples.json").read_text(encoding="utf-8"))
    evaluations = list(cpu_evaluations(samples["rows"]))
    for machine, name in GPU_FILES.items():
        rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        evaluations += [(f"{machine}, {group}", sides) for group, sides in gpu_evaluations(rows, rng)]
    save("side_estimates", {"engine": ENGINE, "groups": study(evaluations)})


if __name__ == "__main__":
    main()
