"""Inspect AI: a whole evaluation, with a model behind a loopback endpoint; kernels are judged by the service."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from inspect_ai import eval as evaluate
from inspect_ai.model import get_model

from pkb_gym.adapters.inspect_ai.tasks import pkb_kernels
from tests.doors import contract
from tests.doors.exported import export_tasks

PROBLEM = "AllReduce"


class Endpoint(BaseHTTPRequestHandler):
    """The chat completions of a model that submits the cases of a plan, one a turn, and then says that it is done.

    A case `no source` is a call with the wrong argument.
    """

    plan: ClassVar[tuple[str, ...]] = ()
    requests: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests.append(request)
        turn = sum(message["role"] == "tool" for message in request["messages"])
        message: dict = {"role": "assistant", "content": "done"}
        if turn < len(self.plan):
            (problem,) = [name for name in contract.PROBLEMS if f"# {name}\n" in str(request["messages"][0]["content"])]
            case = self.plan[turn]
            given = {"code": "x"} if case == "no source" else {"source": contract.find(problem, case).source}
            call = {"name": "submit", "arguments": json.dumps(given)}
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
    return export_tasks(tmp_path_factory.mktemp("inspect") / "tasks", *contract.PROBLEMS)


@pytest.fixture
def samples(tasks, tmp_path, monkeypatch):
    """An evaluation with a plan of cases; its samples."""
    monkeypatch.setenv("PKB_SERVICE_URL", contract.url())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def samples(*cases: str, max_turns: int = 4, problems: tuple[str, ...] = contract.PROBLEMS):
        Endpoint.plan, Endpoint.requests = cases, []
        url = f"http://127.0.0.1:{server.server_port}/v1"
        model = get_model("openai-api/local/m", base_url=url, api_key="none", memoize=False)
        (log,) = evaluate(
            pkb_kernels(str(tasks), max_turns),
            model=model,
            sample_id=list(problems),
            log_dir=str(tmp_path),
            display="none",
            log_realtime=False,
        )
        assert log.status == "success", log.error
        assert {sample.id for sample in log.samples} == set(problems)
        return log.samples

    yield samples
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(samples):
    """The same of one problem."""
    return lambda *cases, **settings: samples(*cases, problems=(PROBLEM,), **settings)[0]


@pytest.mark.parametrize("case", contract.CASES)
def test_contract(samples, case):
    """A submission of each problem, all at a time."""
    for sample in samples(case, max_turns=1):
        expected = contract.find(sample.id, case)
        score = sample.scores["best_reward"]
        (reply,) = [message.text for message in sample.messages if message.role == "tool"]
        if case == "infrastructure":
            assert math.isnan(score.value) and "not judged" in reply
        else:
            assert score.value == expected.value and reply.startswith(f"{expected.failure or 'passed'}: ")


def test_the_best_submission_is_scored(run):
    sample = run("wrong", "expert", "crash")
    score = sample.scores["best_reward"]
    expected = [contract.find(PROBLEM, case) for case in ("wrong", "expert", "crash")]
    assert score.metadata["rewards"] == [case.value for case in expected] and score.value == expected[1].value
    replies = [message.text for message in sample.messages if message.role == "tool"]
    assert [reply.split(":")[0] for reply in replies] == ["output_mismatch", "passed", "runtime_error"]
    assert expected[0].task.split("\n", 1)[0] in str(Endpoint.requests[0]["messages"])
    assert [each["function"]["name"] for each in Endpoint.requests[0]["tools"]] == ["submit"]


def test_a_model_that_submits_nothing_scores_0(run):
    assert run().scores["best_reward"].value == 0.0


def test_a_failure_of_the_service_is_no_score(run):
    score = run("infrastructure").scores["best_reward"]
    assert math.isnan(score.value) and score.explanation == "no submission was judged"
    score = run("infrastructure", "expert").scores["best_reward"]
    assert score.value == contract.find(PROBLEM, "expert").value


def test_a_model_has_its_turns_and_no_more(run):
    sample = run("compile_error", "wrong", "expert", max_turns=2)
    assert len(sample.scores["best_reward"].metadata["rewards"]) == len(Endpoint.requests) == 2


def test_calls_with_wrong_arguments_cost_turns(run):
    """The solver went on for ever, as no submission was counted."""
    sample = run(*["no source"] * 9, max_turns=3)
    assert len(Endpoint.requests) == 3 and sample.scores["best_reward"].value == 0.0


def test_an_evaluation_that_could_judge_nothing_does_not_begin(tasks, tmp_path, monkeypatch):
    monkeypatch.delenv("PKB_SERVICE_URL", raising=False)
    with pytest.raises(Exception, match="PKB_SERVICE_URL not set"):
        pkb_kernels(str(tasks))
    with pytest.raises(ValueError, match="holds no task; `pkb export harbor"):
        pkb_kernels(str(tmp_path))
