"""Connections of the client: kept for the next request, and never taken for alive when they are not."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators import connections
from pkb_gym.engine.evaluators.connections import Connections
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.serve.server import HttpServer, _listen
from pkb_gym.serve.service import EvaluationService
from tests.serve.fake_owner import TOKEN

HEALTH = ("GET", "/v1/health", None, {}, 5.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every connection that was made."""
    made: list[object] = []
    new = Connections._new

    def noted(self: Connections) -> connections.http.client.HTTPConnection:
        made.append(new(self))
        return made[-1]

    monkeypatch.setattr(Connections, "_new", noted)
    return made


def test_a_connection_is_used_again_and_closed_in_the_end(server: HttpServer, opened: list) -> None:
    pool = Connections(server.url)
    assert pool.request(*HEALTH) == pool.request(*HEALTH) == (200, b'{"ok":true}')
    assert len(opened) == 1
    pool.close()
    assert opened[0].sock is None


def test_threads_have_connections_of_their_own(server: HttpServer) -> None:
    pool = Connections(server.url)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: pool.request(*HEALTH), range(64))) == {(200, b'{"ok":true}')}
    pool.close()


def test_a_service_that_was_started_anew_is_found(service: EvaluationService, tmp_path: Path, opened: list) -> None:
    """A connection that the first one had closed was used, and the request repeated after a pause."""
    path = tmp_path / "run" / "a.sock"
    with RemoteEvaluator(f"unix:{path}", TOKEN, unreachable_s=0.0) as client:
        for _ in range(2):
            with HttpServer(service, TOKEN, path=path):
                assert client.status().finished == 0
    assert len(opened) == 2


def test_a_reply_is_read_up_to_a_limit(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Connections(server.url)
    monkeypatch.setattr(connections, "MAX_REPLY_BYTES", 11)
    assert pool.request(*HEALTH)[1] == b'{"ok":true}'
    monkeypatch.setattr(connections, "MAX_REPLY_BYTES", 10)
    with pytest.raises(InfrastructureError, match="answers with more than 10 bytes"):
        pool.request(*HEALTH)
    pool.close()


def test_replies_wait_for_no_acknowledgement() -> None:
    """Bodies were sent 40 ms after their headers."""
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
