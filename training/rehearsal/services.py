"""Whether the services of a command answer from here."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.training.rehearsal.findings import Finding, Level
from pkb_gym.training.rehearsal.plan import Plan
from pkb_gym.training.rehearsal.target import Target

PATIENCE_S = 5.0
"""Longest wait for a service."""


def check_services(plan: Plan, target: Target) -> Iterator[Finding]:
    """Asks each service that the command names.

    On a machine that was described, a service that does not answer is a note: it may be out of reach from here alone.
    """
    absent: Level = "error" if target.is_here else "note"
    evaluation, generation = plan.evaluation, plan.generation
    if evaluation is not None and evaluation.mode == "dedicated" and evaluation.url is not None:
        yield _evaluation_service(evaluation.url, absent)
    if evaluation is not None and evaluation.mode == "ray" and evaluation.url is not None:
        yield _ray(evaluation.url, absent)
    if generation is not None and generation.server_url is not None:
        yield _vllm(generation.server_url, absent)


def _evaluation_service(url: str, absent: Level) -> Finding:
    try:
        with RemoteEvaluator(url, timeout_s=PATIENCE_S, unreachable_s=PATIENCE_S) as service:
            machine = service.machine()
    except PkbError as error:
        return Finding(absent, "judges", f"the evaluation service at {url} does not answer: {error}")
    gpus = f"{len(machine.gpu_names)} GPUs" if machine.gpu_names else "no GPU"
    return Finding("ok", "judges", f"the evaluation service at {url} answers; it has {gpus}")


def _vllm(url: str, absent: Level) -> Finding:
    address = f"{url.rstrip('/')}/health/"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S):  # the user's own server
            return Finding("ok", "vLLM", f"the server at {url} answers")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(absent, "vLLM", f"the server at {url} does not answer ({reason}); start `trl vllm-serve`")


def _ray(url: str, absent: Level) -> Finding:
    parts = urlsplit(url if "://" in url else f"ray://{url}")
    if not parts.hostname or not parts.port:
        return Finding("note", "judges", f"the Ray cluster {url!r} is not asked: its address has no host and port")
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S).close()
    except OSError as error:
        return Finding(absent, "judges", f"the Ray cluster at {url} does not answer: {error}")
    return Finding("ok", "judges", f"the Ray cluster at {url} answers")
