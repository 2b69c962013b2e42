"""A server with the chat completions of OpenAI and scripted replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@dataclass(frozen=True)
class Answer:
    """One response.

    Attributes:
        body: JSON, or lines of a stream; a stream without its end breaks off.
        status: HTTP status.
        headers: Headers beside the usual ones.
        breaks_off: Whether the connection is cut in the middle of the body.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    breaks_off: bool = False


def whole(message: dict[str, Any], usage: dict[str, Any] | None = None, finish: str | None = "stop") -> Answer:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": None, **message}}
    return Answer(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def chunks(
    *deltas: dict[str, Any], usage: dict[str, Any] | None = None, ends: bool = True, finish: str | None = "stop"
) -> Answer:
    base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    lines = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if ends:
        lines.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        lines.append({**base, "choices": [], "usage": usage})
    events = [f"data: {json.dumps(line)}\n\n" for line in lines]
    return Answer([*events, "data: [DONE]\n\n"] if ends else events)


def failure(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer({"error": {"message": message, "type": "x", "code": code}}, status, named)


class Endpoint:
    """The server; answers in order, the last one again and again.

    Attributes:
        requested: Bodies of the requests.
        keys: Authorization headers of the requests.
    """

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.requested: list[dict[str, Any]] = []
        self.keys: list[str] = []
        lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    endpoint.requested.append(body)
                    endpoint.keys.append(self.headers["Authorization"])
                    answer = endpoint._answers.pop(0) if len(endpoint._answers) > 1 else endpoint._answers[0]
                self._answer(answer)

            def _answer(self, answer: Answer) -> None:
                is_stream = isinstance(answer.body, list) and answer.status == 200
                text = "".join(answer.body) if is_stream else answer.body if isinstance(answer.body, str) else None
                data = (json.dumps(answer.body) if text is None else text).encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
                self.send_header("Content-Length", str(len(data) + 100 * answer.breaks_off))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                if answer.breaks_off:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
