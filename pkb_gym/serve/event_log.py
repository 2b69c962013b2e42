"""The log of a service: one JSON object a line, by structlog, for its events and for all else that the process logs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from logging.handlers import WatchedFileHandler
from pathlib import Path

import structlog
from structlog.stdlib import ProcessorFormatter

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.serve.evaluation import ServiceEvent, verdict
from pkb_gym.serve.request_observer import HandledRequest
from pkb_gym.serve.service import ServiceObserver

logger = logging.getLogger(__name__)

STDERR = Path("-")


class EventLog(ServiceObserver):
    """Writes events to this module's logger, at level info: all that happens to an evaluation, under its id."""

    def __init__(self) -> None:
        self._log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
            logger,
            processors=[structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def handled(self, request: HandledRequest) -> None:
        """Logs an HTTP request."""
        self._log.info("request", **asdict(request))

    def observe(self, event: ServiceEvent) -> None:
        """Logs an event; an infrastructure failure has its reason, which is about this machine."""
        entry, answer = event.entry, event.answer
        fields: dict[str, object] = {"client": event.client}
        if entry is None:
            self._log.info(event.name, error=type(answer).__name__, **fields)
            return
        if event.name == "gave_up":
            return
        if event.name == "recovered":
            fields = {"clients": sorted(entry.interest)}
        elif event.name == "accepted":
            fields |= {"problem": entry.problem.name, "key": entry.key}
        elif event.name == "finished":
            fields["verdict"] = verdict(event)
            if isinstance(answer, Feedback) and answer.failure is Failure.INFRASTRUCTURE:
                fields["reason"] = answer.message
        self._log.info(event.name, evaluation=entry.id, **fields)

    def evaluator_replaced(self, why: str) -> None:
        """Logs the reason."""
        self._log.info("evaluator replaced", reason=why)


def json_formatter(hide_tokens: Callable[[str], str]) -> logging.Formatter:
    """Formats log records as `time`, `level`, `logger`, `message`, the fields of an event, and `exception`.

    Args:
        hide_tokens: Applied to each line.
    """
    return ProcessorFormatter(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(lambda fields, **options: hide_tokens(json.dumps(fields, **options))),
        ],
    )


@contextmanager
def logging_to(path: Path, hide_tokens: Callable[[str], str]) -> Iterator[None]:
    """Sends this process's log to a file while the block runs.

    Args:
        path: File that is appended to, and opened again when it is moved away; `STDERR` for standard error.
        hide_tokens: Applied to each line.

    Raises:
        ConfigError: It cannot be written.
    """
    handler: logging.Handler
    if path == STDERR:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            handler = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the log to {path}: {error.strerror}; --log names another file") from None
    handler.setFormatter(json_formatter(hide_tokens))
    root, before = logging.getLogger(), logger.level
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
