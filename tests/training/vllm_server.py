"""The HTTP protocol of a vLLM server as TRL's client speaks it, with answers by `NumberedTasks`."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from tests.training.numbered_tasks import NumberedTasks
from tests.waiting import PATIENCE_S, until


class VllmServer(ThreadingHTTPServer):
    """A server with one worker, which has the weights that a trainer last sent.

    Attributes:
        requests: Bodies of the requests for completions.
        max_model_len: Context of the model, in tokens.
        weights: Weights by name.
        updates: The weights after each complete update.
    """

    daemon_threads = True

    def __init__(self, policy: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tasks = NumberedTasks(policy)
        self.requests: list[dict[str, Any]] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.updates: list[dict[str, torch.Tensor]] = []
        self.is_updating = False
        self.max_model_len = 4096
        self.connection: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def receive(self, count: int) -> None:
        """Takes so many weights from the trainer's broadcast."""
        assert self.connection is not None
        assert self.is_updating
        for _ in range(count):
            (size,) = struct.unpack("!Q", _exactly(self.connection, 8))
            name, tensor = torch.load(io.BytesIO(_exactly(self.connection, size)))
            self.weights[name] = tensor


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        assert part, "the trainer has gone"
        parts += part
    return bytes(parts)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: VllmServer

    def do_GET(self) -> None:
        config = {
            "weight_transfer_config": {"backend": "nccl"},
            "model_config": {"logprobs_mode": "processed_logprobs"},
        }
        answers: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": "policy", "max_model_len": self.server.max_model_len}]},
            "/server_info": {"vllm_config": config},
            "/get_world_size": {"world_size": 1},
        }
        self._send(answers[urlsplit(self.path).path])

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self._send(getattr(self, "_" + self.path.strip("/").replace("/", "_"))(request))

    def _init_weight_transfer_engine(self, request: dict[str, Any]) -> dict[str, Any]:
        info = request["init_info"]
        if self.server.connection is not None:
            self.server.connection.close()  # of a trainer before this one
        self.server.connection = _connected(info["master_address"], info["master_port"])
        return {}

    def _start_weight_update(self, _: dict[str, Any]) -> dict[str, Any]:
        self.server.is_updating = True
        return {}

    def _update_weights(self, request: dict[str, Any]) -> dict[str, Any]:
        self.server.receive(len(request["update_info"]["names"]))
        return {}

    def _finish_weight_update(self, _: dict[str, Any]) -> dict[str, Any]:
        self.server.is_updating = False
        self.server.updates.append(dict(self.server.weights))
        return {}

    def _reset_prefix_cache(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"success": True}

    def _v1_completions(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.server.weights and not self.server.is_updating
        self.server.requests.append(request)
        assert max(map(len, request["prompt"])) + request["max_tokens"] <= self.server.max_model_len, "vLLM refuses it"
        choices = []
        for prompt in request["prompt"]:
            for _ in range(request["n"]):
                ids, logprob = self.server.tasks.answer(prompt, request["max_tokens"])
                logprobs = {
                    "tokens": [f"token_id:{token}" for token in ids],
                    "token_logprobs": [logprob] * len(ids),
                    "top_logprobs": [{}] * len(ids),
                }
                choices.append({"prompt_token_ids": prompt, "token_ids": ids, "logprobs": logprobs})
        return {"choices": choices}

    def _send(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _connected(address: str, port: int) -> socket.socket:
    """The trainer opens its end after it has asked for ours."""
    connections: list[socket.socket] = []

    def connects() -> bool:
        try:
            connections.append(socket.create_connection((address, port), timeout=PATIENCE_S))
        except ConnectionRefusedError:
            return False
        return True

    until(connects, "the trainer does not listen")
    return connections[0]


@contextmanager
def vllm_server(policy: Path) -> Iterator[VllmServer]:
    """A server that listens, for as long as it is needed."""
    with VllmServer(policy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)
            if server.connection is not None:
                server.connection.close()
