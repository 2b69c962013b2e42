"""The log of a service: one JSON object a line."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path

from pkb_gym.engine.errors import ConfigError, PkbError
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.serve.evaluation import Evaluation
from pkb_gym.serve.observer import Observer, verdict
from pkb_gym.serve.request_observer import HandledRequest

logger = logging.getLogger(__name__)

FIELDS = "pkb_fields"
"""Attribute of a log record: further fields of its line."""

STDERR = Path("-")


class JsonLines(logging.Formatter):
    """Formats a record as `time`, `level`, `logger`, `message`, the fields of the event, and `exception`.

    Args:
        hide_tokens: applied to each line.
    """

    def __init__(self, hide_tokens: Callable[[str], str]) -> None:
        super().__init__()
        self._hide_tokens = hide_tokens

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        content: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= getattr(record, FIELDS, {})
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return self._hide_tokens(json.dumps(content))


class EventLog(Observer):
    """Writes events to this module's logger, at level info: all that happens to an evaluation, under its id."""

    def answered(self, request: HandledRequest) -> None:
        """Logs a request."""
        _log(
            "request",
            method=request.method,
            route=request.route,
            status=request.status,
            client=request.client,
            duration_s=round(request.duration_s, 6),
        )

    def accepted(self, evaluation: Evaluation, client: str) -> None:
        """See `Observer`."""
        _log("accepted", evaluation=evaluation.id, client=client, problem=evaluation.problem.name, key=evaluation.key)

    def recovered(self, evaluation: Evaluation) -> None:
        """See `Observer`."""
        _log("recovered", evaluation=evaluation.id, clients=sorted(evaluation.interest))

    def joined(self, evaluation: Evaluation, client: str) -> None:
        """See `Observer`."""
        _log("joined", evaluation=evaluation.id, client=client)

    def refused(self, client: str, error: PkbError) -> None:
        """See `Observer`."""
        _log("refused", client=client, error=type(error).__name__)

    def begun(self, evaluation: Evaluation) -> None:
        """See `Observer`."""
        _log("begun", evaluation=evaluation.id, client=evaluation.client)

    def finished(self, evaluation: Evaluation, answer: Feedback | Exception) -> None:
        """See `Observer`; with the reason of an infrastructure failure, which is about this machine."""
        fields = {"evaluation": evaluation.id, "client": evaluation.client, "verdict": verdict(answer)}
        if isinstance(answer, Feedback) and answer.failure is Failure.INFRASTRUCTURE:
            fields["reason"] = answer.message
        _log("finished", **fields)

    def evaluator_replaced(self, why: str) -> None:
        """See `Observer`."""
        _log("evaluator replaced", reason=why)


@contextmanager
def logging_to(path: Path, hide_tokens: Callable[[str], str]) -> Iterator[None]:
    """Sends this process's log to a file while the block runs.

    Args:
        path: is appended to, and opened again when it is moved away; `STDERR` for standard error.
        hide_tokens: applied to each line.

    Raises:
        ConfigError: it cannot be written.
    """
    handler: logging.Handler
    if path == STDERR:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            handler = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the log to {path}: {error.strerror}; --log names another file") from None
    handler.setFormatter(JsonLines(hide_tokens))
    root, before = logging.getLogger(), logger.level
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def _log(event: str, **fields: object) -> None:
    logger.info(event, extra={FIELDS: fields})
