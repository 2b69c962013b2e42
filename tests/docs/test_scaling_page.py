"""docs/scaling.md names every setting of a pool, and its arithmetic is that of the benchmark."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.common import RESULTS
from benchmarks.ray_sizing import Costs, measured_costs, network_bytes, size, table
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


def test_sizes_of_messages_are_those_of_the_result():
    median = json.loads((RESULTS / "ray_bytes.json").read_text())["median"]
    request, artifact, checked, whole = (
        median[f"{name}_bytes"] / 1e3 for name in ("request", "artifact", "check_record", "record")
    )
    words = (
        f"a request of {request:.0f} kB, an artifact of {artifact:.0f} kB, records of {checked:.1f} kB after the check"
    )
    words += f" and {whole:.1f} kB"
    assert words in " ".join(PAGE.split())
    assert median["artifact_bytes"] < network_bytes() < 2.2 * median["artifact_bytes"]


def test_prices_add_the_cost():
    rows = [row.strip("| ").split(" | ") for row in table(gpu_hour=2.0, core_hour=0.5).splitlines()]
    assert rows[0][-2:] == ["cost an hour", "of 1,000 evaluations"]
    for row in rows[2:]:
        gpus, per_s, cores, an_hour, of_1000 = (float(row[index]) for index in (0, 3, 5, -2, -1))
        assert an_hour == 2.0 * gpus + 0.5 * cores
        assert of_1000 == pytest.approx(an_hour / 3600 / per_s * 1000, rel=0.1)
    assert "cost" not in table()


def test_a_cluster_in_balance():
    costs = Costs(compile_s=2.0, check_s=1.0, exclusive_s=1.0, network_bytes=1e6)
    of = size(costs, gpus=96, world_size=8)
    assert of.exclusive + of.shared == 12 and of.shared == 5
    assert of.per_s <= 0.95 * of.exclusive / 0.7 and of.per_s <= 0.95 * 2 * of.shared
    assert of.compile_cores == 19
    assert of.network_bytes_per_s == 1e6 * of.per_s
    alone = size(costs, gpus=8)
    assert (alone.exclusive, alone.shared) == (1, 0) and alone.per_s == 0.95 / 1.7
