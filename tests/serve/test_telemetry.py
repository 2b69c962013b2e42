"""Metrics and the log count what happens, and hold no token."""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pkb_gym.engine.errors import ConfigError, ServiceBusy
from pkb_gym.serve import event_log
from pkb_gym.serve.app import Telemetry
from pkb_gym.serve.event_log import EventLog, json_formatter, logging_to
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import TOKEN, answer, ask, make_service
from tests.waiting import until


def metrics(server):
    reply = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_metrics(owners):
    telemetry = Telemetry()
    observers = (telemetry.metrics, telemetry.events)
    with (
        make_service(owners, max_begun=1, max_queued=1, observers=observers) as service,
        HttpServer(service, TOKEN, telemetry=telemetry) as server,
    ):
        answer(service, ask(service, "speedup 1"))
        answer(service, ask(service, "deadlock"))
        answer(service, ask(service, "stop"))
        running = ask(service, "run")
        until(lambda: service.status().running == 1)
        assert ask(service, "run") == running
        unwanted = ask(service, "speedup 2")
        with pytest.raises(ServiceBusy):
            ask(service, "speedup 3")
        found = metrics(server)
        for results, count in (("accepted", 5), ("joined", 1), ("refused", 1)):
            assert found["pkb_serve_submissions_total", *sorted(["default", results])] == count
        for verdict in ("passed", "deadlock", "infrastructure"):
            assert found["pkb_serve_evaluations_finished_total", *sorted(["default", verdict])] == 1
        assert found["pkb_serve_evaluations", "running"] == found["pkb_serve_evaluations", "queued"] == 1
        assert found["pkb_serve_client_begun", "default"] == found["pkb_serve_client_queued", "default"] == 1
        assert found["pkb_serve_evaluator_restarts_total",] == 1 and found["pkb_serve_paused",] == 0
        assert found["pkb_serve_queue_seconds_count", "default"] == 4
        assert found["pkb_serve_evaluation_seconds_count", "default"] == 3
        service.give_up(unwanted)
        found = metrics(server)
        assert found["pkb_serve_evaluations_finished_total", "", "given_up"] == 1
        assert found["pkb_serve_http_request_seconds_count", "/metrics", "200", "GET"] == 1, "the one before"


def test_the_log_shows_the_way_of_an_evaluation(owners, tmp_path):
    path = tmp_path / "log.jsonl"
    with logging_to(path, lambda text: text), make_service(owners, observers=[EventLog()]) as service:
        first = ask(service, "speedup 1")
        answer(service, first)
        ask(service, "speedup 1")
        answer(service, ask(service, "break"))
        faulty = answer(service, ask(service, "infrastructure"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["message"] for line in lines if line.get("evaluation") == first] == [
        "accepted",
        "begun",
        "finished",
        "joined",
    ]
    finished = next(line for line in lines if line["message"] == "finished")
    assert (finished["verdict"], finished["client"], finished["level"]) == ("passed", "default", "info")
    warning = next(line for line in lines if line["level"] == "warning")
    assert "ZeroDivisionError" in warning["exception"], "what a program logs in other ways is there too"
    fault = [line for line in lines if line.get("verdict") == "infrastructure"][-1]
    assert fault["reason"] == faulty.message != "", "the log keeps why this machine could not judge"
    assert all(dt.datetime.fromisoformat(line["time"]).tzinfo == dt.UTC for line in lines)
    assert not event_log.logger.isEnabledFor(logging.INFO), "and nothing afterwards"


def test_the_log_goes_to_standard_error(owners, monkeypatch):
    monkeypatch.setattr(sys, "stderr", text := io.StringIO())
    with logging_to(event_log.STDERR, lambda text: text), make_service(owners, observers=[EventLog()]) as service:
        ask(service, "speedup 1")
    assert json.loads(text.getvalue().splitlines()[0])["message"] == "accepted"


def test_no_line_holds_a_token():
    formatter = json_formatter(lambda line: line.replace(TOKEN, "[token]"))
    try:
        raise ConfigError(f"it was {TOKEN}")
    except ConfigError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (TOKEN,), sys.exc_info())
    line = formatter.format(record)
    assert TOKEN not in line and json.loads(line)["message"] == "[token]" and "it was [token]" in line


def test_a_log_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory; --log names another file"), logging_to(tmp_path, str):
        pass
