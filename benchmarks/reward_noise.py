"""How often noise makes a reward say the wrong thing: by the measured speedup, and by the lower end of its interval.

From block samples of real evaluations: on the CPU those of `benchmarks.reward_noise_collect`, each evaluation as it was
measured, gang by gang; on GPUs the blocks of baselines that `benchmarks.gpu_baselines` kept, resampled, where the
candidate is the baseline itself ("eager") or its CUDA graph ("graph"). Intervals are those of the engine. A candidate
of another true speedup is the same one with its times divided: that divides every estimate likewise.

python -m benchmarks.reward_noise
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.records.timing import Block
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.stages.timing_statistics import summarise, typical_us

RATIOS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
GPU_FILES = ("gpu_baselines", "gpu_baselines_2_ranks")
KINDS = ("eager", "graph")
CHOICE_QUANTILES = (0.1, 0.5, 0.9)
GPU_DRAWS = 20
GPU_LEAST_BLOCKS = 5
TURNS = 8
"""Of an episode: as many chances to be lucky with the same kernel."""
NO_OVERHEAD = Overhead(0.0, 0.0, 0.0, 0.0, 0)
"""It was subtracted before the samples were kept."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """Evaluations of one candidate: estimates divided by its true speedup.

    Attributes:
        group: what it is averaged with.
        point: the measured speedups.
        low: the lower ends of their intervals.
        blocks: pairs of blocks in an evaluation, on average.
    """

    group: str
    point: Array
    low: Array
    blocks: float


def estimates(evaluations: Sequence[Sequence[Sequence[float]]]) -> tuple[Array, Array]:
    """Speedups and lower ends of evaluations, given as pairs of block times, by the engine's own statistics."""
    timings = [
        summarise(
            [Block(calls=1, baseline_us=baseline, candidate_us=candidate) for baseline, candidate in pairs],
            protocol="robust",
            overhead=NO_OVERHEAD,
            on_gpus=False,
            baseline_alone_us=None,
            delivered_bytes=0,
        )
        for pairs in evaluations
    ]
    return np.array([timing.speedup for timing in timings]), np.array([timing.speedup_low for timing in timings])


def cpu_pools(rows: Sequence[dict[str, Any]]) -> Iterator[Pool]:
    """One pool per candidate and size; its true speedup is taken to be the median of what was measured."""
    for row in rows:
        point, low = estimates(row["evaluations"])
        truth = float(np.median(point))
        blocks = float(np.mean([len(pairs) for pairs in row["evaluations"]]))
        yield Pool(f"CPU, {row['size']}", point / truth, low / truth, blocks)


def gpu_pools(rows: Sequence[dict[str, Any]], rng: np.random.Generator) -> Iterator[Pool]:
    """Pools of evaluations drawn from the blocks of one baseline; the true speedup is that of all its blocks."""
    for row in rows:
        baseline = np.array((row.get("eager") or {}).get("block_us", []))
        for kind in KINDS:
            candidate = np.array((row.get(kind) or {}).get("block_us", []))
            if min(len(baseline), len(candidate)) < GPU_LEAST_BLOCKS:
                continue
            shape = (GPU_DRAWS, len(baseline))
            drawn = np.stack([rng.choice(baseline, shape), rng.choice(candidate, shape)], axis=2)
            point, low = estimates(drawn.tolist())
            truth = typical_us(baseline) / typical_us(candidate)
            yield Pool(f"H200, {kind}", point / truth, low / truth, float(len(baseline)))


def order_wrong(estimate: Array, ratio: float) -> float:
    """How often one candidate does not come out ahead of another that is slower by the ratio; pairs of evaluations."""
    ahead = ratio * estimate[:, None] > estimate[None, :]
    different = ~np.eye(len(estimate), dtype=bool)
    return 1 - float(ahead[different].mean())


def paid_as_faster(estimate: Array, true_speedup: float) -> float:
    """How often a candidate is taken to be faster than the baseline."""
    return float((true_speedup * estimate > 1).mean())


def study(pools: Sequence[Pool]) -> dict[str, Any]:
    """The errors of both estimates by true ratio, averaged over the pools."""
    result: dict[str, Any] = {
        "candidates": len(pools),
        "evaluations": sum(len(pool.point) for pool in pools),
        "blocks": round(float(np.mean([pool.blocks for pool in pools])), 1),
    }
    for name in ("point", "low"):
        found = [getattr(pool, name) for pool in pools]
        slower = [[paid_as_faster(estimate, 1 / ratio) for estimate in found] for ratio in RATIOS]
        faster = [[paid_as_faster(estimate, ratio) for estimate in found] for ratio in RATIOS]
        result[name] = {
            "order_wrong": _shares([order_wrong(estimate, ratio) for estimate in found] for ratio in RATIOS),
            "slower_paid_as_faster": _shares(slower),
            f"slower_paid_as_faster_once_in_{TURNS}": _shares([1 - (1 - p) ** TURNS for p in row] for row in slower),
            "faster_not_paid": _shares([1 - p for p in row] for row in faster),
            "median_of_true": round(float(np.median(np.concatenate(found))), 3),
        }
    return result


def baseline_choice(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The evidence for either baseline, by size, from the rows that were measured eager and captured.

    `flattery` is the eager time over the captured one: the speedup over eager PyTorch of a kernel that merely equals
    its CUDA graphs; `unearned` its share of the performance reward, log(eager / captured) / log(eager / bound).
    `scatter` is the coefficient of variation of block times. Quantiles are over problems: 10 %, 50 % and 90 %.
    """
    found = {}
    for size in dict.fromkeys(row["size"] for row in rows):
        both = [row for row in rows if row["size"] == size and row.get("eager") and row.get("graph")]
        eager, graph = (np.array([row[kind]["lower_quartile_us"] for row in both]) for kind in KINDS)
        bound = np.array([row["bound_us"] for row in both])
        placed = bound > 0
        found[size] = {
            "problems": sum(row["size"] == size for row in rows),
            "captured": len(both),
            "flattery": _quantiles(eager / graph),
            "unearned": _quantiles(np.log(eager / graph)[placed] / np.log(eager / bound)[placed]),
            "scatter": {kind: _quantiles([_scatter(row[kind]["block_us"]) for row in both]) for kind in KINDS},
        }
    return found


def _scatter(block_us: Sequence[float]) -> float:
    return float(np.std(block_us) / np.mean(block_us))


def _quantiles(values: Sequence[float] | Array) -> list[float]:
    return [round(float(value), 4) for value in np.quantile(values, CHOICE_QUANTILES)]


def _shares(rows: Iterable[Iterable[float]]) -> list[float]:
    return [round(float(np.mean(list(row))), 4) for row in rows]


def main() -> None:
    """Reads the samples, studies them and saves."""
    make_parser("reward_noise", __doc__).parse_args()
    rng = np.random.default_rng(0)
    samples = json.loads((RESULTS / "reward_noise_samples.json").read_text(encoding="utf-8"))
    pools = list(cpu_pools(samples["rows"]))
    choice = {}
    sources = {"reward_noise_samples": {key: samples[key] for key in ("date", "machine", "command", "load_average")}}
    for name in GPU_FILES:
        content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        sources[name] = {key: content[key] for key in ("date", "machine", "device", "command")}
        pools += gpu_pools(content["rows"], rng)
        choice[f"{content['world_size']} GPUs"] = baseline_choice(content["rows"])
    groups = dict.fromkeys(pool.group for pool in pools)
    found = {group: study([pool for pool in pools if pool.group == group]) for group in groups}
    save(
        "reward_noise",
        {"sources": sources, "true_ratios": RATIOS, "turns": TURNS, "groups": found, "baselines": choice},
    )


if __name__ == "__main__":
    main()
