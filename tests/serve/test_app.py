"""The service over HTTP, as any client sees it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pkb_gym.serve import guard
from pkb_gym.serve.app import REFUSALS
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import TOKEN, Owners, make_service
from tests.waiting import PATIENCE_S, until

REQUEST = {"problem": "AllReduce", "config": {"device": "cpu", "world_size": 2, "size": "tiny"}}


@pytest.fixture(scope="module")
def idle() -> Iterator[HttpServer]:
    """A server for requests that come to nothing."""
    with make_service(Owners()) as service, HttpServer(service, TOKEN) as server:
        yield server


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with connect(server) as http:
        yield http


def connect(server: HttpServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S, trust_env=False)


def post(http: httpx.Client, source: str, /, **changes: object) -> httpx.Response:
    return http.post("/v1/evaluations", json=REQUEST | {"source": source} | changes)


def test_a_request_is_answered(http):
    requested = post(http, "run")
    assert requested.status_code == 202
    state = requested.json()
    assert state["state"] != "finished" and state["feedback"] is None
    until(lambda: http.get(f"/v1/evaluations/{state['id']}").json()["state"] == "preparing ranks")
    assert http.get(f"/v1/evaluations/{state['id']}?wait_s=0.05").json()["feedback"] is None


def test_an_answer_is_waited_for(http):
    state = http.get(f"/v1/evaluations/{post(http, 'speedup 2').json()['id']}?wait_s=10").json()
    assert state["state"] == "finished" and state["feedback"]["problem"] == "AllReduce"
    again = post(http, "speedup 2").json()
    assert again == state, "what is known is answered at once"


def test_a_reward_is_computed_for_clients_that_cannot(http):
    rewards = {}
    for source in ("speedup 2", "compile_error", "infrastructure"):
        url = f"/v1/evaluations/{post(http, source).json()['id']}?wait_s=10"
        assert http.get(url).json()["reward"] is None
        rewards[source] = http.get(f"{url}&reward=default").json()["reward"]
    assert rewards["speedup 2"] > rewards["compile_error"] > 0 and rewards["infrastructure"] is None
    refused = http.get(f"{url}&reward=os:getpid")
    assert refused.status_code == 400 and "no preset of rewards 'os:getpid'; expected one of" in refused.text


def test_giving_up(http, service):
    evaluation = post(http, "run").json()["id"]
    assert http.delete(f"/v1/evaluations/{evaluation}").status_code == 200
    assert not service.find(evaluation).is_wanted


def test_pause_and_resume(http):
    assert http.post("/v1/pause?wait_s=5").json() == {"idle": True}
    assert http.get("/v1/status").json()["paused"] is True
    assert http.post("/v1/resume").json() == {"idle": False}
    assert http.get("/v1/status").json()["paused"] is False


def test_health_needs_no_token(idle):
    assert httpx.get(f"{idle.url}/v1/health", trust_env=False).json() == {"ok": True}


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/evaluations"),
        ("GET", "/v1/evaluations/abc"),
        ("DELETE", "/v1/evaluations/abc"),
        ("GET", "/v1/status"),
        ("POST", "/v1/pause"),
        ("POST", "/v1/resume"),
        ("GET", "/metrics"),
        ("GET", "/docs/../metrics"),
        ("GET", "/docs/static/../../metrics"),
        ("GET", "/docs/static/redoc.standalone.js"),
        ("GET", "/v1/health/../status"),
    ],
)
def test_nothing_else_is_had_without_the_token(idle, header, method, path):
    reply = httpx.request(method, idle.url + path, headers=header, trust_env=False)
    assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
    assert "token" in reply.json()["message"]


@pytest.mark.parametrize(
    ("changes", "status", "error", "words"),
    [
        ({"problem": "AllReduc"}, 404, "ProblemNotFound", "Did you mean 'AllReduce'"),
        ({"config": {"size": "huge"}}, 400, "SizeError", "no size 'huge'"),
        ({"config": {"device": "cpu", "language": "cuda"}}, 400, "ConfigError", "does not run on device"),
        ({"config": {"wordl_size": 2}}, 400, "ConfigError", "config.wordl_size: Extra inputs"),
        ({"config": {"world_size": 0}}, 400, "ConfigError", "config.world_size: Input should be greater"),
        ({"source": 7}, 400, "ConfigError", "source: Value error, expected text, got int"),
        ({"kernel": "x"}, 400, "ConfigError", "kernel: Extra inputs"),
        # A thread of the service went through all of them, or the memory of the machine was used up.
        (
            {"config": {"size": {"M": 10**12, "N": 8}}},
            400,
            "SizeError",
            "this service takes numbers up to",
        ),
        ({"config": {"size": {"M": [[-(10**400)]]}}}, 400, "SizeError", "this service takes numbers up to"),
        ({"config": {"size": {"M": [1] * 10_001}}}, 400, "SizeError", "more than 10000 numbers"),
        ({"config": {"trials": 10**9}}, 400, "ConfigError", "trials is 1000000000; this service runs at most 1000"),
        ({"config": {"timeout_s": 1e9}}, 400, "ConfigError", "timeout_s is 1e+09; this service ends an evaluation"),
        ({"config": {"memory_bytes": 10**18}}, 400, "ConfigError", "the machine of this service has"),
        # The reference gang fell, as its messages carry no such numbers.
        ({"config": {"seed": 10**30}}, 400, "ConfigError", "config.seed: Input should be less than"),
        ({"config": {"seed": -(10**30)}}, 400, "ConfigError", "config.seed: Input should be greater than"),
        ({"config": {"turn": 10**30}}, 400, "ConfigError", "config.turn: Input should be less than"),
        # The evaluator was replaced, and with it went all that others had in hand.
        ({"problem": "ClipGradNorm", "config": {"size": {"norm_type": 0}}}, 400, "SizeError", "do not fit together"),
        # The file system refused such a name; and whether there are folders is for nobody elsewhere to know.
        ({"problem": "A" * 10_000}, 404, "ProblemNotFound", f"no problem '{'A' * 200}' among"),
        ({"problem": "a\0b"}, 404, "ProblemNotFound", "no problem 'a\\x00b' among 87. `pkb list` shows all."),
        ({"problem": ".."}, 404, "ProblemNotFound", "no problem '..' among 87. `pkb list` shows all."),
    ],
)
def test_evaluations_without_sense(idle, changes, status, error, words):
    with connect(idle) as http:
        reply = post(http, "speedup 1", **changes)
    assert (reply.status_code, reply.json()["error"]) == (status, error), reply.text
    assert words in reply.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "words"),
    [
        ("POST", "/v1/evaluations", b"{", 400, "JSON decode error"),
        ("POST", "/v1/evaluations", b"[]", 400, "valid dictionary"),
        ("GET", "/v1/evaluations/abc", b"", 404, "no evaluation 'abc' is known"),
        ("GET", "/v1/evaluations/abc?wait_s=long", b"", 400, "query.wait_s"),
        ("GET", "/v1/nothing", b"", 404, "GET /v1/nothing: Not Found"),
        ("PUT", "/v1/status", b"", 405, "Method Not Allowed"),
    ],
)
def test_requests_without_sense(idle, method, path, content, status, words):
    with connect(idle) as http:
        reply = http.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == status and words in reply.json()["message"]


def test_requests_that_are_too_large_are_not_read(http, monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODY_BYTES", 1000)
    assert post(http, "x" * 700).status_code == 202
    reply = post(http, "x" * 2000)
    assert reply.status_code == 413 and "more than 1000 bytes" in reply.json()["message"]

    def parts() -> Iterator[bytes]:
        yield from [b"x" * 600] * 3

    assert http.post("/v1/evaluations", content=parts()).status_code == 413, "no length was announced"


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/pause"), ("GET", "/v1/status"), ("POST", "/v1/health")])
def test_requests_without_a_body_have_room_for_none(idle, method, path):
    with connect(idle) as http:
        reply = http.request(method, path, content=b"x" * 5000)
    assert reply.status_code == 413 and "more than 4096 bytes" in reply.json()["message"]


def test_a_body_that_does_not_arrive_is_not_waited_for(idle, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.05)
    host, port = idle.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/evaluations HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\nx"
    )
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())
        with connection.makefile("rb") as reply:
            assert b" 408 " in reply.readline()


def test_a_busy_service_says_when_to_retry(owners):
    with (
        make_service(owners, max_queued=1, max_begun=1) as service,
        HttpServer(service, TOKEN) as server,
        connect(server) as http,
    ):
        for source in ("run", "speedup 1"):
            assert post(http, source).status_code == 202
        reply = post(http, "speedup 2")
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")


def test_a_waiting_client_gets_the_end_at_once(owners):
    with (
        make_service(owners) as service,
        HttpServer(service, TOKEN) as server,
        connect(server) as http,
        ThreadPoolExecutor(1) as thread,
    ):
        evaluation = post(http, "run").json()["id"]
        waiting = thread.submit(http.get, f"/v1/evaluations/{evaluation}?wait_s=30")
        until(lambda: server._shutdown.has_listeners)
        server._shutdown.set()
        assert waiting.result(PATIENCE_S).json()["state"] == "preparing ranks", "sooner than it had to wait"


def test_the_description_is_complete_and_open(idle):
    description = httpx.get(f"{idle.url}/openapi.json", trust_env=False).json()
    submit = description["paths"]["/v1/evaluations"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/EvaluationRequest")
    assert submit["responses"]["202"]["content"]["application/json"]["schema"]["$ref"].endswith("/EvaluationState")
    assert submit["security"] == [{"token": []}] and "security" not in description["paths"]["/v1/health"]["get"]
    assert description["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert {*map(str, REFUSALS), "default"} <= set(submit["responses"]) and "422" not in submit["responses"]
    assert "speedup_low" in description["components"]["schemas"]["Timing"]["properties"]


def test_the_page_of_the_description_needs_nothing_from_elsewhere(idle):
    reply = httpx.get(f"{idle.url}/docs", trust_env=False)
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in reply.headers["content-security-policy"], "a browser would load nothing else"
    links = re.findall(r"""(?:href|src|url)(?:=|: )['"]([^'"]*)""", reply.text)
    assert len(links) == 4 and "openapi.json" in links
    for link in links:  # all of this service, without a token
        assert httpx.get(f"{idle.url}/{link}", trust_env=False).status_code == 200


def test_a_fault_of_ours_is_reported_without_details(http, service, monkeypatch, caplog):
    def broken() -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(service, "status", broken)
    reply = http.get("/v1/status")
    assert reply.status_code == 500 and json.loads(reply.text)["error"] == "InfrastructureError"
    assert "secret" not in reply.text
    until(lambda: "a secret" in caplog.text)
