"""What Prometheus reads of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pkb_gym.cluster.metrics import COUNTERS, GAUGES, LANE_GAUGES, PoolMetrics
from pkb_gym.cluster.records import LaneStatus, PoolStatus
from tests.packages import needs

pytestmark = needs("ray", extra="ray")

LANE = LaneStatus(
    device="cuda", world_size=8, purpose="exclusive", gangs=3, starting=1, busy=2, slots=3, waiting=5, most=4
)


@dataclass
class Metric:
    """In the place of Ray's: the last value of a gauge, the sum of a counter, by tags."""

    name: str
    description: str
    tag_keys: tuple[str, ...]
    values: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self._key(tags)] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0, "Ray refuses anything else"
        self.values[self._key(tags)] = self.values.get(self._key(tags), 0) + value

    def _key(self, tags: dict[str, str]) -> tuple[tuple[str, str], ...]:
        assert set(tags) == set(self.tag_keys)
        return tuple(sorted(tags.items()))


@pytest.fixture
def made(monkeypatch) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}

    def make(name: str, description: str, tag_keys: tuple[str, ...]) -> Metric:
        metrics[name] = Metric(name, description, tag_keys)
        return metrics[name]

    for kind in ("Gauge", "Counter"):
        monkeypatch.setattr(f"ray.util.metrics.{kind}", make)
    return metrics


def status(**changes: object) -> PoolStatus:
    zeros = {name: 0 for name, kind in PoolStatus.model_fields.items() if kind.annotation in (int, float)}
    return PoolStatus(**(zeros | {"pool": "mine", "lanes": (LANE,), "durations_s": {}} | changes))


def test_counters_grow_by_what_is_new_and_gauges_follow(made):
    metrics = PoolMetrics("mine")
    metrics.set(status(finished=2, unfinished=7, queue_s=0.5))
    metrics.set(status(finished=5, unfinished=4, queue_s=0.5))
    (pool,) = made["pkb_pool_finished"].values
    assert pool == (("pool", "mine"),)
    assert made["pkb_pool_finished"].values[pool] == 5 and made["pkb_pool_queue_s"].values[pool] == 0.5
    assert made["pkb_pool_unfinished"].values[pool] == 4
    assert made["pkb_pool_retries"].values == {}, "nothing was counted"


def test_lanes_are_distinguished(made):
    PoolMetrics("mine").set(status())
    tags = (("device", "cuda"), ("pool", "mine"), ("purpose", "exclusive"), ("world_size", "8"))
    assert made["pkb_pool_lane_waiting"].values == {tags: 5} and made["pkb_pool_lane_busy"].values == {tags: 2}


def test_every_metric_is_a_figure_of_the_status():
    assert set(GAUGES) | set(COUNTERS) <= set(PoolStatus.model_fields)
    assert set(LANE_GAUGES) <= set(LaneStatus.model_fields)
