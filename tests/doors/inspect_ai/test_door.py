"""Inspect AI: a whole evaluation, with a model behind a loopback endpoint; kernels are judged by the service."""

from __future__ import annotations

import json
import math
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from inspect_ai import eval as evaluate
from inspect_ai.model import get_model

from pkb_gym.adapters.inspect_ai.tasks import pkb_kernels
from tests.doors import contract

ROOT = Path(__file__).resolve().parents[3]
PROBLEM = "AllReduce"


class Endpoint(BaseHTTPRequestHandler):
    """The chat completions of a model that submits the sources of a plan, one a turn, and then says that it is done."""

    plan: ClassVar[list[str]] = []
    requests: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests.append(request)
        turn = sum(message["role"] == "tool" for message in request["messages"])
        message: dict = {"role": "assistant", "content": "done"}
        if turn < len(self.plan):
            call = {"name": "submit", "arguments": json.dumps({"source": self.plan[turn]})}
            message |= {"content": None, "tool_calls": [{"id": f"call{turn}", "type": "function", "function": call}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    out = tmp_path_factory.mktemp("inspect") / "tasks"
    settings = contract.SETTINGS
    command = [os.environ["PKB_DOORS_PYTHON"], "-m", "pkb_gym.cli", "export", "harbor", "--out", str(out)]
    command += ["--world-size", str(settings["world_size"]), "--size", settings["size"], "--until", settings["until"]]
    subprocess.run([*command, "--problems", PROBLEM], check=True, cwd=ROOT, timeout=120)
    for path in out.glob("*/tests/request.json"):
        request = json.loads(path.read_text())
        request["config"] |= {"language": "auto", "seed": contract.SEED, "timeout_s": settings["timeout_s"]}
        path.write_text(json.dumps(request))
    return out


@pytest.fixture
def run(tasks, tmp_path, monkeypatch):
    """An evaluation with a plan of cases; its sample."""
    monkeypatch.setenv("PKB_SERVICE_URL", contract.url())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def run(*cases: str, max_turns: int = 4):
        Endpoint.plan, Endpoint.requests = [contract.find(PROBLEM, case).source for case in cases], []
        url = f"http://127.0.0.1:{server.server_port}/v1"
        model = get_model("openai-api/local/m", base_url=url, api_key="none", memoize=False)
        (log,) = evaluate(
            pkb_kernels(str(tasks), max_turns), model=model, log_dir=str(tmp_path), display="none", log_realtime=False
        )
        assert log.status == "success", log.error
        return log.samples[0]

    yield run
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_best_submission_is_scored(run):
    sample = run("wrong", "expert", "crash")
    score = sample.scores["best_reward"]
    wrong, best, crash = score.metadata["rewards"]  # that of the expert is measured anew
    assert [wrong, crash] == pytest.approx([contract.find(PROBLEM, case).value for case in ("wrong", "crash")])
    assert score.value == best > max(wrong, crash)
    replies = [message.text for message in sample.messages if message.role == "tool"]
    assert [reply.split(":")[0] for reply in replies] == ["output_mismatch", "passed", "runtime_error"]
    assert contract.find(PROBLEM, "expert").task.split("\n", 1)[0] in str(Endpoint.requests[0]["messages"])
    assert [each["function"]["name"] for each in Endpoint.requests[0]["tools"]] == ["submit"]


def test_a_model_that_submits_nothing_scores_0(run):
    assert run().scores["best_reward"].value == 0.0


def test_a_failure_of_the_service_is_no_score(run):
    score = run("infrastructure").scores["best_reward"]
    assert math.isnan(score.value) and score.explanation == "no submission was judged"
    score = run("infrastructure", "expert").scores["best_reward"]
    assert score.value > contract.find(PROBLEM, "wrong").value


def test_a_model_has_its_turns_and_no_more(run):
    sample = run("compile_error", "wrong", "expert", max_turns=2)
    assert len(sample.scores["best_reward"].metadata["rewards"]) == len(Endpoint.requests) == 2
