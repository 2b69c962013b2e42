"""The figures of a pool for Prometheus, by Ray's own exporter: the metrics endpoint of its node serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pkb_gym.cluster.records import LaneStatus, PoolStatus
from pkb_gym.engine.records.base import Record

GAUGES = ("unfinished", "compiling", "waiting_to_compile", "artifacts")
COUNTERS = (
    *("submitted", "joined", "refused", "finished", "cancelled", "infrastructure_faults", "retries"),
    *("gangs_started", "gangs_lost", "compiles", "exclusive_steps", "queue_s"),
)
LANE_GAUGES = ("gangs", "starting", "busy", "slots", "waiting")
LANE_TAGS = ("device", "world_size", "purpose")
PREFIX = "pkb_pool_"


class PoolMetrics:
    """Publishes each status of a pool.

    Args:
        pool: Name of the pool, a tag of every metric.
    """

    def __init__(self, pool: str) -> None:
        from ray.util.metrics import Counter, Gauge

        def made(
            kind: type[Any], names: Sequence[str], record: type[Record], tags: tuple[str, ...] = ()
        ) -> dict[str, Any]:
            lane = "lane_" if tags else ""
            fields = record.model_fields
            return {name: kind(f"{PREFIX}{lane}{name}", fields[name].description, ("pool", *tags)) for name in names}

        self._tags = {"pool": pool}
        self._gauges, self._counters = made(Gauge, GAUGES, PoolStatus), made(Counter, COUNTERS, PoolStatus)
        self._lane_gauges = made(Gauge, LANE_GAUGES, LaneStatus, LANE_TAGS)
        self._published: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)

    def set(self, status: PoolStatus) -> None:
        """Publishes a status; counters grow by what came since the last one."""
        for name, gauge in self._gauges.items():
            gauge.set(getattr(status, name), tags=self._tags)
        for name, counter in self._counters.items():
            more = getattr(status, name) - self._published[name]
            if more > 0:
                counter.inc(more, tags=self._tags)
                self._published[name] += more
        for lane in status.lanes:
            tags = self._tags | {tag: str(getattr(lane, tag)) for tag in LANE_TAGS}
            for name, gauge in self._lane_gauges.items():
                gauge.set(getattr(lane, name), tags=tags)
