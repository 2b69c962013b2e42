"""`pkb serve`: the evaluation service of this machine."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.records.replay_key import KEY_BYTES
from pkb_gym.engine.support import env_vars

from .command import Session, Status, add_parser, stderr
from .options import parse_key, positive_float, positive_int
from .problem_options import add_problem_option, register_problems

if TYPE_CHECKING:
    from pkb_gym.serve.app import Telemetry
    from pkb_gym.serve.clients import Clients
    from pkb_gym.serve.evaluation import OwningEvaluator
    from pkb_gym.serve.recorder import Recorder
    from pkb_gym.serve.service import EvaluationService

EXAMPLE = """pkb serve --port 8900
pkb serve --host 10.0.0.5 --port 8900 --clients clients.toml --journal journal.sqlite"""
EXIT = "exit status: 0 ended by SIGTERM, Ctrl-C, idle or with its parent, 2 wrong usage, 3 the server failed"
NEEDS = ("fastapi", "fastapi_offline", "prometheus_client", "structlog", "uvicorn")
UNWANTED_S = 2.0
"""Time in seconds, on a socket, that is left to an evaluation once its command was interrupted; then its ranks are
ended."""

STANDBY_GANGS = 1
"""Number of standby gangs on a socket: memory of GPUs is not kept from others for the second of two commands in a
row."""

SOCKET_ANSWERS = 32
"""Kept on a socket, where no request joins an earlier one; a traced one has megabytes."""

GANG_GRACE_S = 30.0
"""Time in seconds after the deadline, which the services of several gangs keep, until all of them are replaced."""

LOOK_S = 1.0
"""The interval of checks whether the server still runs."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb serve`."""
    parser = add_parser(
        commands,
        "serve",
        run,
        summary="Judge the sources of many clients over HTTP, one candidate at a time on this machine's devices.",
        example=EXAMPLE,
        exit_statuses=EXIT,
    )
    add_problem_option(parser)
    _add_address_options(parser)
    _add_limit_options(parser)
    _add_file_options(parser)
    parser.add_argument(
        "--idle-timeout", type=positive_float, metavar="S", help="end after this many seconds without a request"
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end with the process that started this one, however it ends"
    )


def _add_address_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on (default: any free one)")
    parser.add_argument(
        "--socket",
        type=lambda path: Path(path).absolute(),
        metavar="PATH",
        help="listen on this socket instead, in a folder of yours alone; clients may bring the key of their inputs",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that clients need; made where there is none (default: serve-token in the cache folder)",
    )
    parser.add_argument(
        "--clients",
        type=Path,
        metavar="FILE",
        help="several clients: a TOML table [NAME] each, with token and quotas max_queued and max_running",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="judge on this device alone (default: whichever the requests ask for)",
    )
    parser.add_argument(
        "--gangs",
        type=positive_int,
        default=1,
        metavar="N",
        help="candidates that run at a time, each on an equal share of the GPUs and processors (default: 1)",
    )
    parser.add_argument(
        "--max-queued", type=positive_int, metavar="N", help="requests that may wait to begin (default: 1024)"
    )
    parser.add_argument(
        "--deadline",
        type=positive_float,
        metavar="S",
        help="seconds of compiling and running that an evaluation may take (default: 300; with --socket, no limit)",
    )
    parser.add_argument(
        "--replay-key",
        type=_read_key,
        metavar="HEX",
        help="the key of an earlier service, for the same checked inputs again; - reads it from standard input",
    )


def _read_key(text: str) -> bytes:
    """A replay key, as hexadecimal digits, or from standard input, where no other process sees it.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return parse_key(sys.stdin.readline().strip() if text == "-" else text)


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="append every evaluation there, one JSON record a line"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="keep accepted evaluations there; after a restart with the same file they go on",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append every event there, one JSON object a line; - is standard error"
    )


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Serves until a signal ends it; prints one line of JSON when it is ready.

    Raises:
        ConfigError: a package is missing, the address cannot be had, or the token file cannot be used.
        InfrastructureError: the server ended by itself.
    """
    register_problems(args)
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"pkb serve needs {', '.join(missing)}: pip install 'pkb-gym[serve]'")
    from pkb_gym.serve.app import Telemetry
    from pkb_gym.serve.event_log import logging_to
    from pkb_gym.serve.parent import when_parent_ends
    from pkb_gym.serve.ready_line import ReadyLine, print_ready
    from pkb_gym.serve.server import HttpServer

    clients, token_file = _clients(args)
    if args.journal is not None and args.socket is not None:
        raise ConfigError("--journal is for a service on an address: the commands that use a --socket end with it")
    with contextlib.ExitStack() as stack:
        if args.log is not None:
            stack.enter_context(logging_to(args.log, clients.hide_tokens))
        telemetry = Telemetry()
        service = stack.enter_context(_service(args, clients, telemetry, stack))
        if args.gangs > 1:
            service.machine()  # starts the services of the gangs
        server = HttpServer(service, clients, args.host, args.port, path=args.socket, telemetry=telemetry)
        service.recover()
        stack.enter_context(server)
        shutdown = stack.enter_context(_shutdown_on_signals())
        if args.with_parent:
            when_parent_ends(shutdown.set)
        print_ready(ReadyLine(url=server.url, pid=os.getpid(), token_file=str(token_file)))
        stderr().print(f"serving at {server.url}, with the token in {token_file}", soft_wrap=True)
        while not shutdown.wait(LOOK_S):
            if server.ended.is_set():
                raise InfrastructureError("the HTTP server ended by itself; its output stands above")
            if args.idle_timeout is not None and service.idle_s() > args.idle_timeout:
                break
        if args.socket is not None:
            args.socket.unlink(missing_ok=True)  # from now on, another may be started there
        service.close()  # before the server, so that waiting clients get a reply
    return Status.PASSED


def _service(
    args: argparse.Namespace, clients: Clients, telemetry: Telemetry, stack: contextlib.ExitStack
) -> EvaluationService:
    """The service, not entered yet; its files are open until the stack is closed.

    Raises:
        ConfigError: a file cannot be used.
    """
    from pkb_gym.serve.current_evaluator import MAX_FAILURES
    from pkb_gym.serve.service import DEADLINE_S, MAX_ANSWERS, MAX_QUEUED, EvaluationService

    max_answers = MAX_ANSWERS if args.socket is None else SOCKET_ANSWERS
    deadline_s = args.deadline or (DEADLINE_S if args.socket is None else None)
    return EvaluationService(
        _evaluator_opener(args, deadline_s),
        device=args.device,
        clients=list(clients),
        takes_keys=args.socket is not None,
        max_answers=max_answers,
        unwanted_s=None if args.socket is None else UNWANTED_S,
        max_queued=args.max_queued or MAX_QUEUED,
        deadline_s=deadline_s if args.gangs == 1 or deadline_s is None else deadline_s + GANG_GRACE_S,
        max_failures=MAX_FAILURES if args.gangs == 1 else None,
        recorder=_recorder(args, max_answers, stack),
        observers=(telemetry.metrics, telemetry.events),
    )


def _evaluator_opener(args: argparse.Namespace, deadline_s: float | None) -> Callable[[], OwningEvaluator]:
    """A function that opens the evaluator of the service; all that it opens have the same key.

    Raises:
        ConfigError: the node cannot be divided among so many gangs.
    """
    key = args.replay_key or secrets.token_bytes(KEY_BYTES)
    if args.gangs == 1:
        from pkb_gym.engine.evaluators.local import LocalEvaluator

        if args.socket is None:
            return functools.partial(LocalEvaluator, key=key)
        return functools.partial(LocalEvaluator, key=key, standby_gangs=STANDBY_GANGS)
    from pkb_gym.engine.support.problem_folders import problem_folders
    from pkb_gym.engine.support.processors import move_to
    from pkb_gym.serve.gang_group import open_gang_group
    from pkb_gym.serve.shares import share_out_node

    if args.socket is not None:
        raise ConfigError("--gangs is for a service on an address: the commands that use a --socket judge one by one")
    shares, left = share_out_node(args.gangs)
    if left:
        move_to(left)
    options = ["--device", args.device, "--deadline", f"{deadline_s:g}"]
    options += [word for folder in problem_folders() if not folder.fault for word in ("--problem", str(folder.path))]
    return functools.partial(open_gang_group, shares, key, options)


def _clients(args: argparse.Namespace) -> tuple[Clients, Path]:
    """The clients, and the file that they were read from.

    Raises:
        ConfigError: the options exclude each other, or the file cannot be used.
    """
    from pkb_gym.serve.clients import Clients
    from pkb_gym.serve.server import is_loopback
    from pkb_gym.serve.token import read_or_make_token

    if args.clients is not None:
        if args.token_file is not None:
            raise ConfigError("--token-file is for one client and --clients for several: choose one of them")
        return Clients.read(args.clients), args.clients.absolute()
    if args.token_file is None and not is_loopback(args.host):
        raise ConfigError(f"--host {args.host} can be reached from other machines: add --token-file FILE")
    token_file = (args.token_file or env_vars.cache_dir() / "serve-token").absolute()
    return Clients.sole(read_or_make_token(token_file)), token_file


def _recorder(args: argparse.Namespace, max_answers: int, stack: contextlib.ExitStack) -> Recorder:
    """The recorder of evaluations, whose files are open until the stack is closed.

    Raises:
        ConfigError: a file cannot be used.
    """
    from pkb_gym.engine.evaluators.queue.store import EvaluationStore
    from pkb_gym.engine.records.attempt_file import AttemptFile
    from pkb_gym.serve.recorder import Recorder

    journal = results = None
    if args.journal is not None:
        journal = stack.enter_context(EvaluationStore(args.journal, max_answers))
    if args.results is not None:
        results = stack.enter_context(AttemptFile(args.results, writer="pkb serve", option="--results"))
    return Recorder(journal, results)


@contextlib.contextmanager
def _shutdown_on_signals() -> Iterator[threading.Event]:
    """Set by SIGTERM and Ctrl-C, as long as the block runs."""
    shutdown = threading.Event()
    before = {number: signal.signal(number, lambda *_: shutdown.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield shutdown
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
