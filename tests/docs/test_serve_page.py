"""docs/serve.md: its tables hold what the service has, and its examples run."""

from __future__ import annotations

import re
import threading

import gymnasium as gym

from pkb_gym.engine.records.service import ServiceStatus
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.serve.app import make_app
from pkb_gym.serve.server import HttpServer
from tests.docs.pages import DOCS
from tests.serve.fake_owner import TOKEN, Owners, make_service

PAGE = (DOCS / "serve.md").read_text(encoding="utf-8")


def test_every_request_is_told():
    with make_service(Owners()) as service:
        app = make_app(service, TOKEN, threading.Event())
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods}
    assert set(re.findall(r"^\| `(\w+ /[^`?]*)", PAGE, re.MULTILINE)) == routes


def test_every_field_of_the_status_is_told():
    fields = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
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
