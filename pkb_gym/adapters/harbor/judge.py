"""Has an artefact judged by `pkb serve` and writes its reward; copied beside test.sh, and runs there on Python alone.

    judge.py REQUEST.json ARTEFACT FOLDER      (PKB_SERVICE_URL and PKB_TOKEN are the service's)

Writes `reward.json` and `feedback.json` to the folder. Without an artefact the reward is 0. Where the service, the
network or its machine fails there is no reward.json, which Harbor reports as an error and not as a score.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

REPLY_S, PAUSE_S = 60.0, 2.0
WAIT_S = 30
BUSY = (429, 502, 503, 504)
MAX_CHARS = (1 << 20) + 1
"""Length of an artefact: one more than a source may have. The service refuses a source that is too long, which has a
reward, and does not read a request that is far longer, which would have none."""


class Unjudged(Exception):
    """Raised when there is no verdict."""


def service() -> tuple[str, str]:
    """Url and token of the service.

    Raises:
        Unjudged: An environment variable is missing.
    """
    names = ("PKB_SERVICE_URL", "PKB_TOKEN")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise Unjudged(f"{' and '.join(missing)} not set: the url of `pkb serve` and its token")
    return os.environ["PKB_SERVICE_URL"], os.environ["PKB_TOKEN"]


def judge(request: dict[str, Any], source: str) -> dict[str, Any]:
    """The finished `EvaluationState` of a source.

    Args:
        request: Fields `problem`, `config`, `reward` and `deadline_s`.
        source: Source of the kernel.

    Raises:
        Unjudged: The service refused, was not reached in time, or failed.
    """
    deadline = time.monotonic() + request["deadline_s"]
    sent = {"problem": request["problem"], "config": request["config"], "source": source[:MAX_CHARS]}
    body = json.dumps(sent).encode()
    state: dict[str, Any] | None = None
    while time.monotonic() < deadline:
        if state is None:
            state = _call("POST", "/v1/evaluations", body)
        else:
            wait = f"wait_s={WAIT_S}&reward={request['reward']}"
            found = _call("GET", f"/v1/evaluations/{state['id']}?{wait}", None)
            if found is not None and found["state"] == "finished":
                return found
            if found is None:  # forgotten, or not reached: an equal request joins what is under way
                state = None
        if state is None:
            time.sleep(PAUSE_S)
    raise Unjudged(f"no verdict within {request['deadline_s']:g} s")


def _call(method: str, path: str, body: bytes | None) -> dict[str, Any] | None:
    """The reply; None where another attempt may succeed."""
    address, token = service()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = address.rstrip("/") + path
    call = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(call, timeout=REPLY_S) as reply:
            return dict(json.load(reply))
    except urllib.error.HTTPError as error:
        with error:
            if error.code in BUSY or (error.code == 404 and method == "GET"):
                return None
            text = error.read(10_000).decode(errors="replace")
        raise Unjudged(f"the service refused: HTTP status {error.code}: {text}") from None
    except (OSError, http.client.HTTPException) as error:
        print(f"not reached, {type(error).__name__}: {error}", file=sys.stderr)
        return None


def main(request_file: Path, artefact: Path, folder: Path) -> int:
    """Judges and writes; the exit status is 1 where there is no verdict."""
    if artefact.is_symlink() or not artefact.is_file():  # a link of the agent's leads to files of this container
        print(f"{artefact} is no file: nothing was submitted")
        _write(folder / "reward.json", {"reward": 0.0, "passed": 0, "submitted": 0})
        return 0
    request = json.loads(request_file.read_text(encoding="utf-8"))
    try:
        with artefact.open("rb") as file:
            source = file.read(4 * MAX_CHARS).decode(errors="surrogateescape")
        state = judge(request, source)
    except Unjudged as error:
        print(error, file=sys.stderr)
        return 1
    feedback, reward = state["feedback"], state["reward"]
    print(feedback["message"] or "passed")
    _write(folder / "feedback.json", feedback)
    if feedback["failure"] == "infrastructure" or reward is None:
        print("the service could not judge it", file=sys.stderr)
        return 1
    rewards = {"reward": reward, "passed": int(feedback["failure"] is None), "submitted": 1}
    if feedback["timing"] is not None:
        rewards["speedup"] = feedback["timing"]["speedup"]
    _write(folder / "reward.json", rewards)
    return 0


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(content), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
