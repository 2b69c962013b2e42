"""docs/serve.md: its tables hold what the service has, and its examples run."""

from __future__ import annotations

import re

import gymnasium as gym
from prometheus_client.parser import text_string_to_metric_families

from pkb_gym.engine.evaluators.queue.listeners import Flag
from pkb_gym.engine.records.service import ServiceStatus
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.serve.app import Telemetry, make_app
from pkb_gym.serve.clients import Clients
from pkb_gym.serve.prometheus_metrics import Metrics
from pkb_gym.serve.server import HttpServer
from tests.docs.pages import DOCS
from tests.serve.fake_owner import TOKEN, Owners, make_service

PAGE = (DOCS / "serve.md").read_text(encoding="utf-8")


def test_every_request_is_documented():
    with make_service(Owners()) as service:
        app = make_app(service, Clients.sole(TOKEN), Flag(), Telemetry())
    described = app.openapi()["paths"].items()
    routes = {f"{method.upper()} {path}" for path, operations in described for method in operations}
    routes |= {"GET /openapi.json", "GET /docs"}
    assert set(re.findall(r"^\| `(\w+ /[^`?]*)", PAGE, re.MULTILINE)) == routes


def test_every_field_of_the_status_is_documented():
    _, _, status = PAGE.partition("`GET /v1/status` and `RemoteEvaluator.status()` report:")
    fields = re.findall(r"^\| `(\w+)` \|", status.partition("\n## ")[0], re.MULTILINE)
    assert fields == list(ServiceStatus.model_fields)


def test_the_examples_run(monkeypatch, capsys):
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    with make_service(Owners()) as service, HttpServer(service, TOKEN) as server:
        for example in examples:
            exec(example.replace("http://127.0.0.1:8900", server.url), {"gym": gym})
        close_evaluators()
    assert "joined=1" in capsys.readouterr().out


def test_every_metric_is_documented():
    table = PAGE.partition("All names begin with `pkb_serve_`:")[2].partition("\n\n`")[0]
    rows = {name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    metrics = Metrics()
    with make_service(Owners()) as service:
        metrics.watch(service)
        families = text_string_to_metric_families(metrics.text().decode())
        names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
        names = {name for name in names if not name.endswith("_created")}  # when a counter began, for each of them
    assert rows == {name.removeprefix("pkb_serve_") for name in names}


def test_the_example_of_clients_is_one(tmp_path):
    path = tmp_path / "clients.toml"
    path.write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    path.chmod(0o600)
    trainer, students = Clients.read(path)
    assert (trainer.max_running, trainer.may_pause, students.may_pause) == (16, True, False)
