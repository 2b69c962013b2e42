"""How many gangs fit on the nodes of a cluster."""

from __future__ import annotations

import pytest

from pkb_gym.cluster.placement import gang_resources, gpus_of, lane_limits
from pkb_gym.cluster.settings import PoolSettings

NODE = {"GPU": 8.0, "CPU": 96.0}


@pytest.mark.parametrize(
    ("nodes", "device", "world_size", "settings", "shared", "exclusive"),
    [
        ([NODE] * 4, "cuda", 8, {}, 1, 3),
        ([NODE] * 128, "cuda", 8, {}, 32, 96),
        ([NODE] * 2, "cuda", 4, {}, 1, 3),
        ([NODE], "cuda", 8, {}, 0, 1),  # the one gang checks as well
        ([NODE], "cuda", 16, {}, 0, 1),  # it fits nowhere: the limit is for an autoscaler to meet
        ([{"CPU": 96.0}, {"GPU": 8.0, "CPU": 4.0}], "cuda", 8, {}, 0, 1),  # GPUs without enough processors
        ([NODE] * 2, "cuda", 8, {"exclusive_most": 7}, 1, 7),
        ([NODE] * 2, "cuda", 8, {"shared_most": 0}, 0, 2),
        ([], "cuda", 8, {"shared_most": 2, "exclusive_most": 6}, 2, 6),
        ([{"CPU": 4.0}] * 3, "cpu", 2, {}, 1, 4),  # of six, one leaves its room to compilers
        ([{"CPU": 3.0}] * 3, "cpu", 2, {}, 1, 2),
        ([{"CPU": 2.0}], "cpu", 2, {}, 0, 1),
        ([{"CPU": 8.0}], "cpu", 4, {"compile_cpus": 0}, 1, 1),
        ([{"CPU": 4.0}], "cpu", 4, {"cpus_per_rank": 0.25}, 1, 2),
    ],
)
def test_limits(nodes, device, world_size, settings, shared, exclusive):
    limits = lane_limits(nodes, device, world_size, PoolSettings(**settings))
    assert (limits.of("shared"), limits.of("exclusive")) == (shared, exclusive)


def test_a_gang_reserves_what_its_ranks_use():
    assert gang_resources("cuda", 8, PoolSettings()) == {"GPU": 8, "CPU": 8}
    assert gang_resources("cpu", 4, PoolSettings(cpus_per_rank=0.5)) == {"CPU": 2}
    assert gang_resources("cpu", 4, PoolSettings(cpus_per_rank=0))["CPU"] > 0, "Ray refuses a group of nothing"


def test_the_node_with_the_most_gpus_counts():
    assert gpus_of([]) == 0 and gpus_of([{"CPU": 4.0}, {"GPU": 2.0}, NODE]) == 8
