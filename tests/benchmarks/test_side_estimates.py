"""The study of statistics over blocks: by hand, and that the kept result carries the engine's choice."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.common import RESULTS
from benchmarks.side_estimates import (
    BLOCKS,
    DRAWS,
    ENGINE,
    STATISTICS,
    covered,
    cpu_evaluations,
    gpu_evaluations,
    speedups,
    study,
)
from pkb_gym.engine.stages.timing_statistics import typical_us

KEPT = json.loads((RESULTS / "side_estimates.json").read_text(encoding="utf-8"))
QUARTILE = "quantile 0.25"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (QUARTILE, 2.0),
        ("quantile 0.5", 3.0),
        ("fastest", 1.0),
        ("mean of the fastest 1/4", 1.5),
        ("mean of the fastest 2/5", 1.5),
        ("mean of the fastest 1/2", 2.0),
        ("mean of the fastest 1", 3.0),
    ],
)
def test_statistics_of_five_blocks(name, found):
    blocks_us = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert STATISTICS[name](blocks_us) == found
    assert STATISTICS[name](np.stack([blocks_us, 2 * blocks_us])).tolist() == [found, 2 * found]


def test_the_engine_s_is_among_them():
    blocks_us = np.arange(16.0)
    assert typical_us(blocks_us) == float(STATISTICS[ENGINE](blocks_us))


def test_evaluations_on_the_cpu_are_taken_as_they_were_measured():
    rows = [{"size": "tiny", "evaluations": [[[20.0, 10.0], [30.0, 10.0]], [[40.0, 10.0]]]}]
    [(group, sides)] = cpu_evaluations(rows)
    assert group == "CPU, tiny"
    assert speedups(sides, STATISTICS["fastest"]).tolist() == [2.0, 4.0]


def test_evaluations_on_gpus_are_drawn_from_long_calls():
    long, short = {"block_us": [100.0] * 12}, {"block_us": [20.0] * 12}
    rows = [{"eager": long, "graph": {"block_us": [50.0] * 12}}, {"eager": short}, {"eager": {"block_us": [100.0] * 5}}]
    drawn = dict(gpu_evaluations(rows, np.random.default_rng(0)))
    assert list(drawn) == [f"{kind}, {blocks} pairs" for kind in ("eager", "graph") for blocks in BLOCKS]
    assert speedups(drawn["graph, 7 pairs"], STATISTICS[ENGINE]).tolist() == [2.0] * DRAWS


def test_scatter_and_level_are_of_the_speedups():
    sides = ([np.array([20.0] * 4), np.array([22.0] * 4)], [np.array([10.0, 10.0, 10.0, 40.0])] * 2)
    found = study([("one", sides)])["one"]
    assert found["candidates"] == 1
    variation = pytest.approx(0.0673, abs=1e-4)
    assert found[QUARTILE] == {"coefficient_of_variation": variation, "level": 1.0, "covered": 0.5}
    assert found["mean of the fastest 1"]["level"] == pytest.approx(10 / 17.5, abs=1e-3)


def test_intervals_of_scattered_blocks_hold_the_median():
    steady, scattered = np.full(8, 10.0), np.array([10.0, 20.0] * 4)
    rng = np.random.default_rng(0)
    assert covered(([steady, steady, 2 * steady], [steady] * 3), STATISTICS["quantile 0.5"], rng) == pytest.approx(
        2 / 3
    )
    assert covered(([scattered] * 3, [steady] * 3), STATISTICS["quantile 0.5"], rng) == 1


@pytest.mark.parametrize("group", [group for group in KEPT["groups"] if "GPUs" in group])
def test_the_engine_s_statistic_scatters_less_than_the_lower_quartile_at_the_same_level(group):
    """Its choice rests on it, and that figures by the lower quartile are kept."""
    ours, quartile = KEPT["groups"][group][KEPT["engine"]], KEPT["groups"][group][QUARTILE]
    assert KEPT["engine"] == ENGINE
    assert ours["coefficient_of_variation"] < 0.9 * quartile["coefficient_of_variation"]
    assert ours["level"] == pytest.approx(1, abs=0.005)


def test_the_kept_result_is_that_of_the_kept_samples():
    rows = json.loads((RESULTS / "reward_noise_samples.json").read_text(encoding="utf-8"))["rows"]
    found = study(list(cpu_evaluations(rows)))
    assert found == {group: KEPT["groups"][group] for group in found}, f"run `{KEPT['command']}`"
