"""The socket of a workspace, and the client that asks it: on any Python, and with bounds on whatever connects."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys

import pytest

from pkb_gym.agents.workspace import client, requests
from pkb_gym.agents.workspace.requests import workspace_socket
from pkb_gym.rewards.examples import timed
from tests.waiting import PATIENCE_S

SOURCE = {"action": "evaluate", "source": "int a;"}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "workspace"
    path.mkdir(mode=0o700)
    for name in ("evaluate", "submit"):
        shutil.copyfile(client.__file__, path / name)
    return path


@pytest.fixture
def listener(folder):
    with workspace_socket(folder) as found:
        yield found


def connected(folder, content, *, is_whole=True):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(folder / client.SOCKET))
    connection.sendall(content)
    if is_whole:
        connection.shutdown(socket.SHUT_WR)
    return connection


def reply_of(connection):
    with connection:
        parts = []
        while not parts or parts[-1]:
            parts.append(connection.recv(1 << 16))
    return json.loads(b"".join(parts))


def ask(folder, name, *words):
    """The client as a process, on Python without packages."""
    command = [sys.executable, "-I", "-S", str(folder / name), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_client_sends_a_file_and_prints_the_reply(listener, folder):
    (folder / "a.cpp").write_bytes(b"caf\xe9")
    with ask(folder, "evaluate", str(folder / "a.cpp"), "--until", "check", "--race", "strict") as process:
        call = next(filter(None, iter(lambda: listener.next_call(1), 0)))
        call.reply(1, "wrong", timed())
        out, _ = process.communicate(timeout=PATIENCE_S)
    request = call.request
    assert (request.action, request.file, request.until, request.race) == ("evaluate", "a.cpp", "check", "strict")
    assert (request.source, out, process.returncode) == ("caf\udce9", "wrong\n", 1)


def test_a_client_prints_the_record_on_request(listener, folder):
    (folder / "a.cpp").write_text("int a;", encoding="utf-8-sig")
    with ask(folder, "evaluate", str(folder / "a.cpp"), "--json") as process:
        call = next(filter(None, iter(lambda: listener.next_call(1), 0)))
        assert call.request.source == "int a;", "the byte order mark of a file is no part of its text"
        call.reply(0, "right", timed(speedup=3.0))
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["timing"]["speedup"] == 3.0 and process.returncode == 0


def test_a_client_without_an_evaluator_or_a_file_says_so(folder):
    (folder / "a.cpp").write_text("int a;")
    for words, status, message in (
        (("submit", str(folder / "a.cpp")), 3, "the evaluator cannot be reached"),
        (("submit", str(folder / "b.cpp")), 2, "b.cpp: No such file"),
        (("submit",), 2, "the following arguments are required: file"),
        (("submit", "a.cpp", "--until", "check"), 2, "unrecognized arguments"),
    ):
        with ask(folder, *words) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert message in err and process.returncode == status


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"\x80", "decode"),
        (b"[]", "valid dictionary"),
        (b"[" * 100_000, "recursion"),
        (json.dumps(SOURCE | {"action": "delete"}).encode(), "action: Input should be 'evaluate' or 'submit'"),
        (json.dumps(SOURCE | {"until": "soon"}).encode(), "until: Input should be"),
        (json.dumps(SOURCE | {"turns": 5}).encode(), "turns: Extra inputs"),
        (json.dumps(SOURCE | {"source": 5}).encode(), "source: Value error, expected text"),
        (json.dumps(SOURCE | {"file": "x" * 300}).encode(), "file: String should have at most 255"),
        (json.dumps(SOURCE | {"source": "x" * 1001}).encode(), "the source is longer than 1000 bytes"),
    ],
)
def test_a_malformed_request_is_refused(listener, folder, monkeypatch, content, words):
    monkeypatch.setattr(requests, "MAX_SOURCE_BYTES", 1000)
    connection = connected(folder, content)
    assert listener.next_call(PATIENCE_S) is None
    reply = reply_of(connection)
    assert reply["status"] == 2 and words in reply["text"]


def test_a_request_has_a_bounded_length(listener, folder, monkeypatch):
    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 1000)
    connection = connected(folder, b"x" * 2000)
    assert listener.next_call(PATIENCE_S) is None
    assert "longer than 1000 bytes" in reply_of(connection)["text"]


def test_a_request_has_a_deadline(listener, folder, monkeypatch):
    monkeypatch.setattr(requests, "REQUEST_S", 0.05)
    connection = connected(folder, b"{", is_whole=False)
    assert listener.next_call(PATIENCE_S) is None
    assert "not sent within 0.05 s" in reply_of(connection)["text"]


def test_a_client_that_has_gone_disturbs_nobody(listener, folder):
    connected(folder, json.dumps(SOURCE).encode()).close()
    call = listener.next_call(PATIENCE_S)
    call.reply(0, "x" * (1 << 22))
    connection = connected(folder, json.dumps(SOURCE).encode())
    listener.next_call(PATIENCE_S).reply(0, "here")
    assert reply_of(connection)["text"] == "here"


def test_a_client_that_does_not_read_is_given_up(listener, folder, monkeypatch):
    monkeypatch.setattr(requests, "REQUEST_S", 0.05)
    with connected(folder, json.dumps(SOURCE).encode()):
        listener.next_call(PATIENCE_S).reply(0, "x" * (1 << 24))


def test_clients_wait_in_line(listener, folder):
    content = json.dumps(SOURCE).encode()
    connections = [connected(folder, content) for _ in range(3)]
    for number in range(3):
        listener.next_call(PATIENCE_S).reply(0, str(number))
    assert [reply_of(connection)["text"] for connection in connections] == ["0", "1", "2"]
