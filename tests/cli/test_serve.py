"""`pkb serve` as a process: what it says, how it ends, and what becomes of those who wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.remote import UNREACHABLE_S, RemoteEvaluator
from pkb_gym.engine.hardware.calibrate import cpu_hardware, find_compiler, machine_key
from pkb_gym.engine.hardware.cpu_info import PROCESSORS, SYSTEM, cpu_info, read_cpu_info
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.serve.shares import share_out_node
from tests.waiting import PATIENCE_S

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


def test_it_prints_its_address_and_ends_on_a_signal(tmp_path):
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


def test_a_client_of_a_killed_server_gets_an_error(tmp_path):
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
            assert children and time.monotonic() - killed < UNREACHABLE_S


def test_a_killed_server_that_is_started_again_has_lost_and_doubled_nothing(tmp_path):
    """Killed after the first of 30 answers, with the others on their way."""
    files = ("--journal", str(tmp_path / "journal.sqlite"), "--results", str(tmp_path / "results.jsonl"))
    config = EvalConfig(device="cpu", world_size=2, size="tiny")
    sources = [f"no source {number}" for number in range(30)]
    with serving(tmp_path, *files) as (process, ready):
        token = Path(ready["token_file"]).read_text().strip()
        with RemoteEvaluator(ready["url"], token) as client:
            accepted = [client.submit(PROBLEM, source, config) for source in sources]
            client.evaluate(PROBLEM, sources[0], config)
            process.kill()
            process.wait()
    with serving(tmp_path, *files) as (process, ready), RemoteEvaluator(ready["url"], token) as client:
        for evaluation, source in zip(accepted, sources, strict=True):
            url = f"{ready['url']}/v1/evaluations/{evaluation}?wait_s=30"
            state = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60).json()
            assert state["state"] == "finished" and state["feedback"]["source_sha256"] == source_sha256(source)
            assert client.submit(PROBLEM, source, config) == evaluation, "and an equal request joins it"
    assert sorted(attempt.source for attempt in read_attempts(tmp_path / "results.jsonl")) == sorted(sources)


def test_clients_and_a_log(tmp_path):
    token = "a-token-of-this-test"
    clients = tmp_path / "clients.toml"
    clients.write_text(f'[trainer]\ntoken = "{token}"\n')
    clients.chmod(0o600)
    with serving(tmp_path, "--clients", str(clients), "--log", str(tmp_path / "log.jsonl")) as (process, ready):
        assert ready["token_file"] == str(clients)
        with RemoteEvaluator(ready["url"], token) as client:
            config = EvalConfig(device="cpu", world_size=2, size="tiny")
            assert not client.evaluate(PROBLEM, token, config).passed
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    log = (tmp_path / "log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"accepted", "begun", "finished", "request"} <= {line["message"] for line in lines}
    assert {line["client"] for line in lines} == {"trainer"} and token not in log


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from other machines: add --token-file FILE"),
        (["--port", "99999"], "cannot listen on port 99999: expected 0 (any that is free) to 65535"),
        (["--host", "300.1.1.1", "--token-file", "FILE"], "cannot listen on 300.1.1.1, port 0"),
        (["--token-file", "SHORT"], "expected one word of at least 16 ASCII characters"),
        (["--token-file", "FOLDER"], "Is a directory"),
        (["--token-file", "FILE", "--clients", "FILE"], "--token-file is for one client and --clients for several"),
        (["--clients", "SHORT"], "other users have access to it: chmod 600"),
        (["--journal", "FOLDER"], "--journal names another"),
        (["--journal", "FILE", "--socket", "FILE"], "--journal is for a service on an address"),
        (["--log", "FOLDER"], "--log names another file"),
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
    needed = "fastapi, fastapi_offline, prometheus_client, structlog, uvicorn"
    assert ran.err == f"pkb: error: pkb serve needs {needed}: pip install 'pkb-gym[serve]'\n"


def take_as_measured(cache: Path, processors: Collection[int]) -> None:
    """Notes this machine's rates for a part of it, too: measuring one takes ten seconds of a processor."""
    cpu_hardware()
    whole, part = (
        machine_key(info, find_compiler())
        for info in (cpu_info(), read_cpu_info(SYSTEM, PROCESSORS, frozenset(processors)))
    )
    noted = env_vars.cache_dir() / "hardware" / f"cpu-{whole}.json"
    if not noted.exists():  # an earlier test of this process has measured, into a cache of its own
        return
    (cache / "hardware").mkdir()
    text = noted.read_text(encoding="utf-8").replace(whole, part)
    (cache / "hardware" / f"cpu-{part}.json").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each gang needs a processor")
def test_several_gangs_are_one_service(tmp_path, compiled_before):
    """Each has a process of its own, which ends with the service, and the key that no command line shows."""
    take_as_measured(tmp_path, share_out_node(2)[0][0].processors)
    (compiled_before / "compile").mkdir(exist_ok=True)
    (tmp_path / "compile").symlink_to(compiled_before / "compile")
    key = "5ec2e7" * 8
    command = [sys.executable, "-m", "pkb_gym.cli", "serve", "--gangs", "2", "--device", "cpu", "--replay-key", "-"]
    environment = {**os.environ, "PKB_CACHE_DIR": str(tmp_path)}
    config = EvalConfig(device="cpu", world_size=1, size="tiny", until="check")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{key}\n")
            process.stdin.flush()
            ready = json.loads(process.stdout.readline())
            service = psutil.Process(process.pid)
            gangs = [child for child in service.children() if "serve" in child.cmdline()]
            assert len(gangs) == 2 and not any(key in word for child in gangs for word in child.cmdline())
            assert not set(gangs[0].cpu_affinity()) & set(gangs[1].cpu_affinity())
            token = Path(ready["token_file"]).read_text().strip()
            reference = Path(PROBLEM.declared_in).with_name("reference.py").read_text(encoding="utf-8")
            sources = [f"{reference}\n# {number}\n" for number in range(2)]
            with RemoteEvaluator(ready["url"], token, timeout_s=PATIENCE_S) as client, ThreadPoolExecutor(2) as threads:
                found = list(threads.map(lambda source: client.evaluate(PROBLEM, source, config), sources))
            assert all(feedback.passed for feedback in found), [feedback.message for feedback in found]
            assert {feedback.environment.processors for feedback in found} == {len(gangs[0].cpu_affinity())}
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert not any(child.is_running() for child in gangs)
        finally:
            process.kill()


def test_several_gangs_are_for_a_service_on_an_address(tmp_path):
    words = [sys.executable, "-m", "pkb_gym.cli", "serve", "--gangs", "2", "--socket", str(tmp_path / "s")]
    refused = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PKB_CACHE_DIR": str(tmp_path)})
    assert refused.returncode == 2 and "--gangs is for a service on an address" in refused.stderr
