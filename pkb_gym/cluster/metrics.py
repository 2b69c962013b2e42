"""The figures of a pool for Prometheus, by Ray's own exporter: the metrics endpoint of its node serves them."""

from __future__ import annotations

from typing import Any

from pkb_gym.cluster.records import PoolStatus

GAUGES = {
    "unfinished": "Evaluations that wait or run.",
    "compiling": "Compiles that run.",
    "waiting_to_compile": "Evaluations that wait for a compiler.",
    "artifacts": "Sources whose artifacts are in the object store.",
}
COUNTERS = {
    "submitted": "Requests that began an evaluation.",
    "joined": "Requests that were answered by the evaluation of an equal request.",
    "refused": "Requests that found the pool full.",
    "finished": "Evaluations that were answered.",
    "cancelled": "Evaluations that were cancelled, as no client waited for them.",
    "infrastructure_faults": "Evaluations that ended as an infrastructure failure.",
    "retries": "Further attempts after a node, gang or evaluator had failed.",
    "gangs_started": "Gangs that were started.",
    "gangs_lost": "Gangs that ended unasked, or were ended for a fault.",
    "compiles": "Compile tasks that ran.",
    "exclusive_steps": "Steps that took an exclusive gang.",
    "queue_s": "Seconds that steps waited for a compiler or a gang.",
}
LANE_GAUGES = {
    "gangs": "Gangs that are ready.",
    "starting": "Gangs that are being started.",
    "busy": "Evaluations that run on gangs.",
    "slots": "Evaluations that could run on gangs at the same time.",
    "waiting": "Evaluations that wait for a gang.",
}
LANE_TAGS = ("device", "world_size", "purpose")
PREFIX = "pkb_pool_"


class PoolMetrics:
    """Publishes each status of a pool.

    Args:
        pool: its name, a tag of every metric.
    """

    def __init__(self, pool: str) -> None:
        from ray.util.metrics import Counter, Gauge

        self._tags = {"pool": pool}
        self._gauges: dict[str, Any] = {name: Gauge(PREFIX + name, text, ("pool",)) for name, text in GAUGES.items()}
        self._counters: dict[str, Any] = {
            name: Counter(PREFIX + name, text, ("pool",)) for name, text in COUNTERS.items()
        }
        self._lane_gauges: dict[str, Any] = {
            name: Gauge(f"{PREFIX}lane_{name}", text, ("pool", *LANE_TAGS)) for name, text in LANE_GAUGES.items()
        }
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
