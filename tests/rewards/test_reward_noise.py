"""The study of noise: its errors by hand, and that what is kept is what its samples give."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import reward_noise
from benchmarks.common import RESULTS
from benchmarks.reward_noise import (
    GPU_FILES,
    Pool,
    baseline_choice,
    cpu_pools,
    estimates,
    gpu_pools,
    order_wrong,
    paid_as_faster,
    study,
)

KEPT = json.loads((RESULTS / "reward_noise.json").read_text(encoding="utf-8"))
SAMPLES = json.loads((RESULTS / "reward_noise_samples.json").read_text(encoding="utf-8"))


def test_the_order_is_wrong_where_the_faster_candidate_is_not_ahead():
    """Of the six ordered pairs of 1, 1.1 and 2: with a ratio of 1.2, 1 falls behind 2, and 1.1 does."""
    estimate = np.array([1.0, 1.1, 2.0])
    assert order_wrong(estimate, 1.2) == pytest.approx(2 / 6)
    assert order_wrong(estimate, 10.0) == 0 and order_wrong(np.ones(3), 1.0) == 1


def test_a_candidate_is_paid_as_faster_above_1():
    estimate = np.array([0.9, 1.0, 1.2, 1.6])
    assert [paid_as_faster(estimate, true) for true in (1.0, 0.8, 0.5, 1.2)] == [0.5, 0.25, 0.0, 1.0]


def test_estimates_are_those_of_the_engine():
    """Blocks without noise: the interval is what the engine widens it by for what differs between gangs."""
    point, low = estimates([[[10.0, 5.0]] * 6])
    assert point.tolist() == [2.0] and low == pytest.approx([1.96])


def test_a_pool_without_noise_is_never_wrong():
    steady = Pool("steady", np.ones(4), np.full(4, 0.98), 6.0)
    found = study([steady])
    assert found["point"]["order_wrong"] == found["low"]["order_wrong"] == [0] * len(reward_noise.RATIOS)
    assert found["point"]["slower_paid_as_faster"] == [0] * len(reward_noise.RATIOS)
    assert found["low"]["faster_not_paid"] == [1, 1, 0, 0, 0, 0, 0]


def test_gpu_pools_are_drawn_from_the_blocks_of_a_row():
    eager, graph = {"block_us": [8.0, 8.0, 8.0, 8.0, 8.0]}, {"block_us": [4.0, 4.0, 4.0, 4.0, 4.0]}
    rows = [{"eager": eager, "graph": graph}, {"eager": eager, "graph": None}, {"eager": None}]
    pools = list(gpu_pools(rows, np.random.default_rng(0)))
    assert [pool.group for pool in pools] == ["H200, eager", "H200, graph", "H200, eager"]
    assert all(pool.point.tolist() == [1.0] * reward_noise.GPU_DRAWS for pool in pools)


def test_what_speaks_for_either_baseline_by_hand():
    """Eager 8 us, captured 4, bound 2: matching the graph is 2 times as fast, and half of the way to the bound."""
    eager = {"lower_quartile_us": 8.0, "block_us": [6.0, 10.0]}
    graph = {"lower_quartile_us": 4.0, "block_us": [4.0, 4.0]}
    row = {"size": "published", "eager": eager, "graph": graph, "bound_us": 2.0}
    rows = [row, row | {"graph": None}, row | {"size": "large", "bound_us": 4.0}]
    found = baseline_choice(rows)
    assert (found["published"]["problems"], found["published"]["captured"]) == (2, 1)
    assert found["published"]["flattery"] == [2.0] * 3 and found["published"]["unearned"] == [0.5] * 3
    assert found["published"]["scatter"] == {"eager": [0.25] * 3, "graph": [0.0] * 3}
    assert found["large"]["unearned"] == [1.0] * 3


@pytest.mark.parametrize("gpus", GPU_FILES)
def test_the_kept_choice_is_that_of_the_kept_baselines(gpus):
    content = json.loads((RESULTS / f"{gpus}.json").read_text(encoding="utf-8"))
    kept = KEPT["baselines"][f"{content['world_size']} GPUs"]
    assert baseline_choice(content["rows"]) == kept, f"run `{KEPT['command']}`"


def test_the_captured_baseline_scatters_less_and_is_no_slower():
    """What the default baseline rests on: at size published, on 2 and 4 GPUs."""
    for sizes in KEPT["baselines"].values():
        published = sizes["published"]
        assert published["flattery"][1] > 2, "most of an eager baseline's time is launches"
        assert published["scatter"]["graph"][1] < published["scatter"]["eager"][1] / 2
        assert sizes["large"]["flattery"][1] == pytest.approx(1.0, abs=0.05), "where either is as good"


@pytest.mark.parametrize("size", ["tiny", "published"])
def test_the_kept_results_are_those_of_the_samples(size):
    rows = [row for row in SAMPLES["rows"] if row["size"] == size]
    found, kept = study(list(cpu_pools(rows))), KEPT["groups"][f"CPU, {size}"]
    assert found["evaluations"] == kept["evaluations"] and found["blocks"] == kept["blocks"]
    for estimate in ("point", "low"):
        for error, shares in found[estimate].items():
            assert shares == pytest.approx(kept[estimate][error], abs=0.02), f"run `{KEPT['command']}`"


def test_the_lower_end_is_what_seldom_pays_what_is_slower():
    """What the default rests on, of every device and size."""
    for group in KEPT["groups"].values():
        point, low = (group[estimate]["slower_paid_as_faster"] for estimate in ("point", "low"))
        assert all(ours <= theirs for ours, theirs in zip(low, point, strict=True))
        assert low[0] < point[0] / 4 and low[0] < 0.1
