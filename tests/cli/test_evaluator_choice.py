"""Who judges for `pkb eval`: fresh processes, a service, or the background evaluator where its packages are."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

import pytest

from pkb_gym.cli import evaluator_choice
from pkb_gym.cli.evaluator_choice import ASKING
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import TOKEN, Owners, make_service

EVAL = ("eval", "AllReduce", "-", "--device", "cpu", "--world-size", "2", "--size", "tiny")


@pytest.fixture
def owners() -> Owners:
    return Owners()


@pytest.fixture
def url(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    with make_service(owners) as service, HttpServer(service, TOKEN) as server:
        yield server.url


def test_a_service_judges(pkb, owners, url):
    ran = pkb(*EVAL, "--service", url, "--json", stdin=b"speedup 3")
    feedback = json.loads(ran.out)
    assert ran.status == 0 and feedback["timing"]["speedup"] == 3.0 and feedback["durations_s"][ASKING] >= 0
    assert owners.requested == ["speedup 3"] and not ran.evaluators


def test_a_service_draws_the_inputs_itself(pkb, url):
    ran = pkb(*EVAL, "--service", url, stdin=b"output_mismatch")
    assert ran.status == 1 and "again, on the same inputs" not in ran.err
    ran = pkb(*EVAL, "--service", url, "--replay-key", "0a", stdin=b"speedup 3")
    assert ran.status == 2 and "ask without a replay key" in ran.err


def test_a_service_and_processes_of_its_own_exclude_each_other(pkb, url):
    ran = pkb(*EVAL, "--service", url, "--fresh", stdin=b"speedup 3")
    assert ran.status == 2 and "not allowed with argument" in ran.err


def test_fresh_is_fresh_in_any_environment(pkb, monkeypatch):
    monkeypatch.setenv("PKB_EVALUATOR", "background")
    ran = pkb(*EVAL, "--fresh", stdin=b"passed")
    assert ran.status == 0 and len(ran.calls) == 1


def test_without_its_packages_there_is_none(pkb, monkeypatch):
    monkeypatch.setenv("PKB_EVALUATOR", "background")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        evaluator_choice.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    ran = pkb(*EVAL, stdin=b"passed")
    assert ran.status == 0 and len(ran.calls) == 1
    assert "without a background evaluator, which needs uvicorn: pip install 'pkb-gym[serve]'" in ran.err


def test_where_its_socket_cannot_lie_there_is_none(pkb, monkeypatch, tmp_path):
    """A home that cannot be written ended every evaluation."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("PKB_EVALUATOR", "background")
    monkeypatch.delenv("PKB_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(evaluator_choice.env_vars, "runtime_dir", lambda: tmp_path / "file" / "run")
    ran = pkb(*EVAL, stdin=b"passed")
    assert ran.status == 0 and len(ran.calls) == 1
    assert "run cannot hold its socket: Not a directory; PKB_RUNTIME_DIR names another" in ran.err


def test_a_folder_that_the_user_names_must_hold_it(pkb, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PKB_EVALUATOR", "background")
    monkeypatch.setenv("PKB_RUNTIME_DIR", str(tmp_path / "file"))
    ran = pkb(*EVAL, stdin=b"passed")
    assert ran.status == 2 and not ran.calls
    assert f"PKB_RUNTIME_DIR names {tmp_path / 'file'}, which cannot hold sockets: File exists" in ran.err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PKB_EVALUATOR", "sometimes", "PKB_EVALUATOR is 'sometimes'; expected 'background' or 'fresh'"),
        ("PKB_EVALUATOR_IDLE_S", "0", "PKB_EVALUATOR_IDLE_S is '0'; expected a number of seconds above 0"),
        ("PKB_EVALUATOR_IDLE_S", "long", "PKB_EVALUATOR_IDLE_S is 'long'; expected a number of seconds above 0"),
    ],
)
def test_variables_without_sense(pkb, monkeypatch, name, value, words):
    monkeypatch.setenv("PKB_EVALUATOR", "background")
    monkeypatch.setenv(name, value)
    ran = pkb(*EVAL, stdin=b"passed")
    assert ran.status == 2 and words in ran.err and not ran.calls
