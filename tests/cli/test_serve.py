"""`pkb serve` as a process: what it says, how it ends, and what becomes of those who wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

PATIENCE_S = 20.0
PROBLEM = find_problem("AllReduce")


@contextmanager
def serving(folder: Path, *arguments: str, shell: bool = False) -> Iterator[tuple[subprocess.Popen[str], dict]]:
    """The process (or the shell that started it), and what it printed when it was ready."""
    command = [sys.executable, "-m", "pkb_gym.cli", "serve", *arguments]
    if shell:
        command = ["sh", "-c", '"$@"; true', "sh", *command]  # `true` keeps the shell from becoming the command
    environment = {**os.environ, "PKB_CACHE_DIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_it_says_where_it_is_and_ends_when_told(tmp_path):
    with serving(tmp_path) as (process, ready):
        assert ready.keys() == {"url", "pid", "token_file"} and ready["pid"] == process.pid
        token_file = Path(ready["token_file"])
        assert token_file == tmp_path / "serve-token" and token_file.stat().st_mode & 0o777 == 0o600
        assert ready["url"].startswith("http://127.0.0.1:")
        with RemoteEvaluator(ready["url"], token_file.read_text().strip()) as client:
            assert client.status().finished == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_it_ends_with_its_parent(tmp_path):
    with serving(tmp_path, "--with-parent", shell=True) as (shell, ready):
        server = psutil.Process(ready["pid"])
        assert server.ppid() == shell.pid
        shell.kill()
        server.wait(PATIENCE_S)
    with pytest.raises(httpx.ConnectError):
        httpx.get(ready["url"] + "/v1/health", trust_env=False)


def test_who_waits_for_a_killed_server_hears_of_it(tmp_path):
    with serving(tmp_path) as (process, ready):
        token = Path(ready["token_file"]).read_text().strip()
        children: list[psutil.Process] = []
        with RemoteEvaluator(ready["url"], token, unreachable_s=0.5) as client, ThreadPoolExecutor(1) as thread:
            config = EvalConfig(device="cpu", world_size=2, size="tiny")
            waiting = thread.submit(client.evaluate, PROBLEM, expert_source(PROBLEM), config)
            deadline = time.monotonic() + PATIENCE_S
            while not children and time.monotonic() < deadline:  # it has begun
                children = psutil.Process(process.pid).children(recursive=True)
                time.sleep(0.01)
            process.kill()
            killed = time.monotonic()
            with pytest.raises(InfrastructureError, match="cannot be reached"):
                waiting.result(PATIENCE_S)
            assert children and time.monotonic() - killed < 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from other machines: say --token-file FILE as well"),
        (["--port", "99999"], "cannot listen on port 99999: expected 0 (any that is free) to 65535"),
        (["--host", "300.1.1.1", "--token-file", "FILE"], "cannot listen on 300.1.1.1, port 0"),
        (["--token-file", "SHORT"], "expected one word of at least 16 ASCII characters"),
        (["--token-file", "FOLDER"], "Is a directory"),
        (["--max-queued", "0"], "'0' must be a whole number above 0"),
    ],
)
def test_what_cannot_be_served(pkb, tmp_path, arguments, words):
    (tmp_path / "short").write_text("secret\n")
    paths = {"FILE": tmp_path / "new", "SHORT": tmp_path / "short", "FOLDER": tmp_path}
    ran = pkb("serve", *(paths.get(word, word) for word in arguments))
    assert (ran.status, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())


def test_without_the_extra_it_says_what_to_install(pkb, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = pkb("serve")
    assert ran.status == 2
    assert ran.err == "pkb: error: pkb serve needs fastapi and uvicorn: pip install 'pkb-gym[serve]'\n"
