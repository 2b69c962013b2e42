"""docs/scaling.md names every setting of a pool, and its arithmetic is that of the benchmark."""

from __future__ import annotations

import re

from benchmarks.ray_sizing import Costs, measured_costs, size, table
from pkb_gym.cluster.settings import PoolSettings
from tests.docs.pages import DOCS

PAGE = (DOCS / "scaling.md").read_text(encoding="utf-8")


def test_every_setting_is_explained():
    section = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    named = [
        name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(PoolSettings.model_fields)


def test_the_table_is_what_the_benchmark_prints():
    assert table() in PAGE
    costs = measured_costs()
    for name, seconds in (("c", costs.compile_s), ("k", costs.check_s), ("x", costs.exclusive_s)):
        assert re.search(rf"\b{name} = {seconds:.2f} s", PAGE)


def test_a_cluster_in_balance():
    of = size(Costs(compile_s=2.0, check_s=1.0, exclusive_s=1.0), gpus=96, world_size=8)
    assert of.exclusive + of.shared == 12 and of.shared == 5
    assert of.per_s <= 0.95 * of.exclusive / 0.7 and of.per_s <= 0.95 * 2 * of.shared
    assert of.compile_cores == 19
    alone = size(Costs(compile_s=2.0, check_s=1.0, exclusive_s=1.0), gpus=8)
    assert (alone.exclusive, alone.shared) == (1, 0) and alone.per_s == 0.95 / 1.7
