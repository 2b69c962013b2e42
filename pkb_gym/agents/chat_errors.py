"""The errors of chat endpoints: the server's own words, and whose fault they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pkb_gym.agents.protocol import AgentError, RequestRefused
from pkb_gym.engine.errors import ConfigError, PkbError
from pkb_gym.engine.support.printable import printable

if TYPE_CHECKING:
    from openai import OpenAIError

MAX_ERROR_CHARS = 500

REFUSALS = (400, 403, 413, 422)
"""Statuses of a request that the server refuses: it is too long, a filter rejects it, or a field is not supported."""
WRONG_ADDRESS = (401, 404, 405)
"""Statuses of a wrong key, an unknown model, or a path that is no chat endpoint."""
RETRIED = (408, 409, 429)
"""Statuses beside the server's own errors, from 500, after which a request is sent again."""


def server_words(body: object) -> str:
    """The message in the body of an error, of whatever shape.

    Example:
        >>> server_words([{"error": {"code": 400, "message": "no such model"}}])
        'no such model'
        >>> server_words({"detail": [{"loc": ["body", "top_p"], "msg": "must be below 1"}]})
        'body.top_p: must be below 1'
    """
    if isinstance(body, str):
        return body
    if isinstance(body, list):
        return "; ".join(filter(None, map(server_words, body)))
    if not isinstance(body, dict):
        return ""
    for name in ("message", "msg", "error", "detail", "errors", "text"):
        if words := server_words(body.get(name)):
            place = body.get("loc")
            raw = body["metadata"].get("raw") if isinstance(body.get("metadata"), dict) else None
            prefix = f"{'.'.join(map(str, place))}: " if isinstance(place, list) else ""
            return f"{prefix}{words}" + (f" ({raw})" if isinstance(raw, str) and raw else "")
    return json.dumps(body) if body else ""


def in_one_line(words: str) -> str:
    """A message of a server in one line, cut, and without effect on a terminal."""
    return printable(" ".join(words.split()), MAX_ERROR_CHARS)


def error_of(error: OpenAIError, url: str, model: str) -> PkbError:
    """The error of ours for one of the client.

    Args:
        error: Error of the client.
        url: Url of the endpoint, without credentials.
        model: Name of the model.
    """
    import openai

    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        words = in_one_line(f"HTTP {status}: {server_words(error.body) or error.message}")
        if status in REFUSALS:
            return RequestRefused(f"the endpoint refuses the request: {words}")
        if status in WRONG_ADDRESS:
            is_bare = status != 401 and url.rpartition("//")[2].find("/") < 0
            hint = f"; OPENAI_BASE_URL names no path, most servers have {url}/v1" if is_bare else ""
            return ConfigError(f"the endpoint {url} refuses model {model!r}: {words}{hint}")
        return AgentError(f"the endpoint {url} failed: {words}")
    if isinstance(error, openai.APITimeoutError):
        return AgentError(f"the endpoint {url} did not answer in time")
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return AgentError(f"the endpoint {url} was not reached: {in_one_line(str(cause) or type(cause).__name__)}")
    return AgentError(f"the endpoint {url} failed: {in_one_line(str(error))}")
