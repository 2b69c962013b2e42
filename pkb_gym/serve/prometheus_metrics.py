"""The metrics of a service, in the format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.serve.evaluation import ServiceEvent, verdict
from pkb_gym.serve.request_observer import HandledRequest
from pkb_gym.serve.service import EvaluationService, ServiceObserver

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
HTTP_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
EVALUATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Metrics(ServiceObserver):
    """Counts events as they come, and reads the state of the service when it is asked for; safe in several threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"pkb_serve_{name}", about, labels, registry=self._registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"pkb_serve_{name}", about, labels, buckets=buckets, registry=self._registry)

        self._submissions = counter(
            "submissions", "Submissions: accepted, joined to an equal one, refused.", "client", "result"
        )
        self._verdicts = counter("evaluations_finished", "Evaluations by what came of them.", "client", "verdict")
        self._recovered = counter("evaluations_recovered", "Evaluations of an earlier service, taken up again.")
        self._queue_s = histogram("queue_seconds", "From acceptance to the begin.", EVALUATION_BUCKETS_S, "client")
        self._total_s = histogram(
            "evaluation_seconds", "From acceptance to the answer.", EVALUATION_BUCKETS_S, "client"
        )
        self._http_s = histogram(
            "http_request_seconds", "Requests, long polls included.", HTTP_BUCKETS_S, "method", "route", "status"
        )

    def watch(self, service: EvaluationService) -> None:
        """Adds the state of a service, as it is whenever the text is asked for."""
        self._registry.register(_State(service))

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)

    def handled(self, request: HandledRequest) -> None:
        """Counts an HTTP request."""
        self._http_s.labels(request.method, request.route, str(request.status)).observe(request.duration_s)

    def observe(self, event: ServiceEvent) -> None:
        """Counts an event."""
        client, entry = event.client, event.entry
        if event.name in ("accepted", "joined", "refused"):
            self._submissions.labels(client, event.name).inc()
        elif event.name == "recovered":
            self._recovered.inc()
        elif entry is not None and event.name == "begun":
            self._queue_s.labels(client).observe(time.monotonic() - entry.requested_at_s)
        elif entry is not None and event.name == "finished":
            self._verdicts.labels(client, verdict(event)).inc()
            if isinstance(event.answer, Feedback):
                self._total_s.labels(client).observe(time.monotonic() - entry.requested_at_s)


class _State(Collector):
    """The state of a service at the time of a scrape."""

    def __init__(self, service: EvaluationService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; see `Collector`."""
        status, (queued, begun) = self._service.status(), self._service.load()
        states = GaugeMetricFamily("pkb_serve_evaluations", "Evaluations by state.", labels=["state"])
        for state in ("queued", "compiling", "waiting", "running"):
            states.add_metric([state], getattr(status, state))
        yield states
        for name, about, counts in (
            ("queued", "Evaluations of a client that wait to begin.", queued),
            ("begun", "Evaluations of a client that have begun and not finished.", begun),
        ):
            clients = GaugeMetricFamily(f"pkb_serve_client_{name}", about, labels=["client"])
            for client, count in counts.items():
                clients.add_metric([client], count)
            yield clients
        stages = CounterMetricFamily("pkb_serve_stage_seconds", "Wall time of each stage.", labels=["stage"])
        for stage, seconds in status.durations_s.items():
            stages.add_metric([stage], seconds)
        yield stages
        yield CounterMetricFamily("pkb_serve_evaluator_restarts", "Evaluators that were replaced.", status.restarts)
        yield GaugeMetricFamily("pkb_serve_paused", "Whether the devices are left to another program.", status.paused)
        yield GaugeMetricFamily("pkb_serve_uptime_seconds", "Since the start.", status.uptime_s)
