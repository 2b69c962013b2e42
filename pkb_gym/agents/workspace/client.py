#!/usr/bin/env python3
"""Has the evaluator of the run judge a kernel, or submits one.

    ./evaluate FILE [--until compile|check|time|profile] [--race on|off|strict] [--json]
    ./submit FILE

`--until` stops after that stage, `--race` chooses whether the race detector judges a CUDA source, and `--json` prints
the whole feedback record. Every evaluation counts; `./submit` names the submission and ends the episode.

Exit status: 0 passed or submitted, 1 the kernel is wrong, 2 refused: wrong usage, or the budget is used up, 3 it could
not be judged.
"""
# Copied into workspaces, as `evaluate` and as `submit`: any Python runs it, without packages.

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import Final

SOCKET = ".evaluator"
"""Name of the socket in the workspace."""

MAX_BYTES = (1 << 20) + 1
"""Length of a source: one more byte than is taken, so that one that is too long is refused and not cut."""

REFUSED: Final = 2
NOT_JUDGED: Final = 3
"""Exit statuses beside 0 and 1."""


def main(name: str, arguments: list[str]) -> int:
    """Sends a file; returns the exit status.

    Args:
        name: "evaluate" or "submit".
        arguments: Command line without the program.
    """
    parser = argparse.ArgumentParser(
        prog=f"./{name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="source of the kernel")
    if name == "evaluate":
        parser.add_argument("--until", choices=("compile", "check", "time", "profile"), help="last stage")
        parser.add_argument("--race", choices=("on", "off", "strict"), help="whether the race detector judges")
        parser.add_argument("--json", action="store_true", help="print the feedback record in place of its text")
    given = vars(parser.parse_args(arguments))
    try:
        with Path(given["file"]).open("rb") as file:
            source = file.read(MAX_BYTES)
    except OSError as error:
        print(f"{given['file']}: {error.strerror}", file=sys.stderr)
        return REFUSED
    request = {
        "action": name,
        "file": os.fsencode(Path(given["file"]).name).decode("utf-8", "replace"),
        "source": source.decode("utf-8-sig", "surrogateescape"),
        "until": given.get("until"),
        "race": given.get("race"),
    }
    os.chdir(Path(__file__).absolute().parent)  # the path of a socket has 107 bytes at most
    try:
        reply = json.loads(ask(json.dumps(request).encode()))
    except (OSError, ValueError) as error:
        print(f"the evaluator cannot be reached: {error}", file=sys.stderr)
        return NOT_JUDGED
    status: int = reply["status"]
    wants_record = given.get("json", False) and reply["feedback"] is not None
    print(
        json.dumps(reply["feedback"]) if wants_record else reply["text"],
        file=sys.stdout if status < REFUSED else sys.stderr,
    )
    return status


def ask(request: bytes) -> bytes:
    """The reply to a request; waits for as long as the evaluation takes.

    Raises:
        OSError: The evaluator cannot be reached.
    """
    parts: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(SOCKET)
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        while not parts or parts[-1]:
            parts.append(connection.recv(1 << 16))
    return b"".join(parts)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).name, sys.argv[1:]))
