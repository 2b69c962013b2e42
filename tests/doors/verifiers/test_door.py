"""The taskset of verifiers: scoring, the tool server, rollouts, validation."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import verifiers.v1 as vf
from verifiers.v1.cli.validate import main as validate
from verifiers.v1.mcp.server import ServerBase
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

import pkb_verifiers
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards import find_reward
from pkb_verifiers import taskset
from pkb_verifiers.config import KernelTasksetConfig
from pkb_verifiers.state import INFO, EvaluatedSource, KernelState
from pkb_verifiers.taskset import KernelTask, KernelTaskset
from tests.doors import contract
from tests.doors.examples import example
from tests.doors.verifiers import scripted

SIDE_BY_SIDE = 12
JUDGE = contract.SETTINGS | {"evaluator": contract.url()}


def taskset_config(*problems: str) -> KernelTasksetConfig:
    split = ",".join(problems or contract.PROBLEMS)
    return KernelTasksetConfig(id="pkb-verifiers", split=split, seed=contract.SEED, task=JUDGE)


def environment(harness: str, *problems: str) -> vf.Env:
    agent = vf.AgentConfig(harness=vf.harness_config_type(harness)(id=harness), runtime=vf.SubprocessConfig())
    return vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset_config(*problems), agent=agent))


def context(url: str = "http://127.0.0.1:9/v1") -> vf.ModelContext:
    return vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=url, api_key_var="PKB_TOKEN"))


async def rollouts(env: vf.Env, ctx: vf.ModelContext, per_task: int = 1) -> list[vf.Trace]:
    async with env.serving():
        slots = [slot for task in env.taskset for slot in env.slots(task, per_task)]
        at_a_time = asyncio.Semaphore(SIDE_BY_SIDE)
        episodes = await asyncio.gather(*(env.run_slot(slot, ctx, at_a_time) for slot in slots))
    traces = [trace for episode in episodes for trace in episode.traces]
    for trace in traces:
        assert INFO in trace.info, (episodes[0].errors, trace.errors)
    return traces


def value_of(attempt: dict) -> float:
    """Of one submission, by the reward itself: timed again at another turn, a source is another measurement."""
    return find_reward(contract.SETTINGS["reward"])(Feedback.model_validate(attempt["feedback"]))


SIDE = [contract.find("AllReduce", name).source for name in ("compile_error", "wrong", "expert")]
MANY = [f"{contract.find('Gather', 'compile_error').source}# {number}\n" for number in range(5)]


@pytest.fixture(scope="module")
def played() -> list[vf.Trace]:
    """Every submission of the contract in a rollout of its own, and one more rollout of each problem, all at a time.

    That one submits several sources: of AllReduce at once, of Gather more than are judged, of the others one again.
    """
    plans = {name: [[contract.find(name, case).source] for case in contract.CASES] for name in contract.PROBLEMS}
    last = {"AllReduce": tuple(SIDE), "Gather": MANY}
    for name in contract.PROBLEMS:
        plans[name].append(last.get(name, [contract.find(name, "compile_error").source] * 2))
    scripted.install()
    scripted.ScriptedHarness.plans = plans
    env = environment(scripted.NAME, *contract.PROBLEMS)
    return asyncio.run(rollouts(env, context(), len(contract.CASES) + 1))


@pytest.fixture(scope="module")
def traces(played) -> dict[tuple[str, str], vf.Trace]:
    """Those of the contract."""
    cases = {each.source: (each.problem, each.case) for each in contract.expected()}
    return {cases[trace.info[INFO][0]["source"]]: trace for trace in played if len(trace.info[INFO]) == 1}


@pytest.mark.parametrize("case", contract.expected(), ids=lambda case: case.id)
def test_contract(traces, case):
    trace = traces[case.problem, case.case]
    assert trace.task.data.prompt == case.task and trace.info["replies"] == [case.text]
    (attempt,) = trace.info[INFO]
    assert (attempt["feedback"]["problem"], attempt["feedback"]["failure"]) == (case.problem, case.failure)
    if case.case == "infrastructure":
        assert trace.rewards == {"best_value": None} and not trace.ok
        assert trace.last_error.type == "TaskError" and "no reward" in trace.last_error.message
        return
    assert trace.ok and trace.rewards["best_value"].value == trace.reward == case.value
    assert trace.metrics["correct"] == (case.case == "expert")
    assert trace.metrics["speedup"] == case.speedup
    assert (trace.metrics["roofline"] > 0) is (case.speedup > 0)


def test_submissions_of_one_message_all_count(played):
    """The framework keeps the last of states that are written side by side: a submission would be free."""
    (trace,) = [trace for trace in played if len(trace.info[INFO]) == len(SIDE)]
    assert {attempt["source"] for attempt in trace.info[INFO]} == set(SIDE)
    assert trace.reward == max(map(value_of, trace.info[INFO])) > 0.75


def test_the_budget_ends_a_rollout(played):
    (trace,) = [trace for trace in played if len(trace.info[INFO]) == 4]
    assert [attempt["source"] for attempt in trace.info[INFO]] == MANY[:4]
    assert trace.info["replies"][4].startswith("All 4 submissions")
    assert trace.state.is_over and asyncio.run(task("Gather").budget(trace))


# ---- scoring of traces that were made by hand ------------------------------------------------------------------------


def task(problem: str) -> KernelTask:
    (found,) = vf.load_taskset(taskset_config(problem))
    return found


def trace_of(found: KernelTask, *attempts: EvaluatedSource) -> vf.Trace:
    about = vf.TraceTask(type="KernelTask", data=found.data, key=found.key, hash=found.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig(), name="agent", trainable=True)
    state = KernelState(problem=found.data.problem, seed=found.data.seed, attempts=list(attempts))
    return vf.Trace(task=about, agent=agent, state=state)


def attempt_of(traces, problem: str, case: str) -> EvaluatedSource:
    return EvaluatedSource.model_validate(traces[problem, case].info[INFO][0])


def test_the_best_of_several_submissions_counts(traces):
    found = task("AllReduce")
    trace = trace_of(found, *(attempt_of(traces, "AllReduce", case) for case in ("wrong", "expert", "compile_error")))
    asyncio.run(found.score(trace))
    expert = contract.find("AllReduce", "expert")
    assert (trace.reward, trace.metrics["speedup"], trace.metrics["correct"]) == (expert.value, expert.speedup, 1)


def test_a_rollout_without_submission_earns_nothing():
    found = task("AllReduce")
    trace = trace_of(found)
    asyncio.run(found.score(trace))
    assert trace.reward == 0 and trace.metrics == {"correct": 0, "speedup": 0, "roofline": 0}


def test_one_submission_that_was_not_judged_takes_the_reward_away(traces):
    found = task("AllReduce")
    trace = trace_of(found, attempt_of(traces, "AllReduce", "expert"), EvaluatedSource(source="x", feedback=None))
    with pytest.raises(vf.TaskError, match="it has no reward"):
        asyncio.run(found.score(trace))
    assert trace.rewards == {"best_value": None}


def test_a_stored_trace_is_scored_again(traces):
    found = task("AllReduce")
    stored = json.loads(json.dumps(traces["AllReduce", "expert"].to_record()))
    again = vf.WireTrace.model_validate(stored)
    again.rewards, again.metrics = {}, {}
    asyncio.run(found.score(again))
    assert again.reward == contract.find("AllReduce", "expert").value


def test_keys_last(traces):
    found = task("AllReduce")
    changed = found.with_data(prompt="another text", idx=5)
    assert found.key == changed.key == "AllReduce-v0/11" and found.hash != changed.hash
    assert traces["AllReduce", "wrong"].task.key == found.key
    keys = [each.key for each in vf.load_taskset(taskset_config("all"))]
    assert len(keys) == len(set(keys)) == 87


# ---- the package -----------------------------------------------------------------------------------------------------


def test_the_package_exports_one_taskset_and_needs_no_torch():
    exported = [getattr(pkb_verifiers, name) for name in pkb_verifiers.__all__]
    assert exported == [KernelTaskset] and type(vf.load_taskset(taskset_config())) is KernelTaskset
    needed = importlib.metadata.requires("pkb-verifiers")
    assert not any(name.startswith(("torch", "pkb-gym")) for name in needed)
    assert importlib.util.find_spec("torch") is None


def test_verifiers_still_has_what_is_overridden():
    """Private names: were one renamed, submissions side by side would be lost in silence."""
    for name in ("_with_state", "_state_channel"):
        assert inspect.isfunction(inspect.getattr_static(ServerBase, name)), f"verifiers has no {name} any more"


def test_vf_validate_is_green(tmp_path, monkeypatch, capsys):
    """In this process: another one would import the framework again."""
    monkeypatch.setattr(sys, "argv", ["vf-validate"])  # which it writes, as it does this variable
    monkeypatch.setenv("VF_RUN_ID", "validated-here")
    command = ["pkb-verifiers", "--no-rich", "--runtime.type", "subprocess", "-o", str(tmp_path)]
    command += ["--taskset.split", "AllReduce,Gather", "--taskset.seed", str(contract.SEED)]
    for name, value in JUDGE.items():
        command += [f"--taskset.task.{name.replace('_', '-')}", str(value)]
    validate(command)
    (summary,) = tmp_path.rglob("summary.json")
    outcomes = json.loads(summary.read_text())
    assert outcomes["outcomes"]["valid"] == outcomes["total"] == 2, capsys.readouterr()


def test_an_expert_that_fails_is_invalid_and_the_reason_is_logged(monkeypatch, caplog):
    """vf-validate shows no more than "invalid"."""
    monkeypatch.setattr(taskset, "expert_source", lambda *_: contract.find("Gather", "compile_error").source)
    assert asyncio.run(task("Gather").validate(None)) is False
    assert "Gather: the expert kernel failed: compile_error" in caplog.text


# ---- end to end ------------------------------------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """Submits a wrong kernel, then the expert's, then says that it is done.

    Of Gather it calls the tool without a source, however often it is told.
    """

    protocol_version = "HTTP/1.1"

    def arguments(self, problem: str, turn: int) -> dict[str, str] | None:
        """The arguments of the call of a turn; None for an end in words."""
        if problem == "Gather":
            return {"code": f"turn {turn}"}
        cases = ("wrong", "expert")
        return None if turn == len(cases) else {"source": contract.find(problem, cases[turn]).source}

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = request["messages"]
        problem = messages[0]["content"].splitlines()[0].removeprefix("# ")
        turn = sum(message["role"] == "tool" for message in messages)
        arguments = self.arguments(problem, turn)
        if arguments is None:
            message, reason = {"role": "assistant", "content": "That is all."}, "stop"
        else:
            (tool,) = [each["function"]["name"] for each in request["tools"]]
            function = {"name": tool, "arguments": json.dumps(arguments)}
            call = {"id": f"c{turn}", "type": "function", "function": function}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        assert request["stream"]
        calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls") or [])]
        whole = {"index": 0, "delta": {**message, "tool_calls": calls}, "finish_reason": None}
        end = {"index": 0, "delta": {}, "finish_reason": reason}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        lines = [{**chunk, "choices": [whole]}, {**chunk, "choices": [end], "usage": usage}]
        body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines).encode() + b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


async def prepared(self, script, env=None, *, activate=True) -> list[str]:
    """In place of `uv`, which would fetch the packages of a harness's program: they are installed here."""
    path = self.workdir / "program.py"
    path.write_text(script)
    return [sys.executable, str(path)]


@pytest.fixture(scope="module")
def answered() -> dict[str, vf.Trace]:
    """Rollouts of the framework's own harness `null` and its program, by problem: each environment imports it again."""
    with pytest.MonkeyPatch.context() as patch, endpoint() as url:
        patch.setattr(SubprocessRuntime, "prepare_uv_script", prepared)
        traces = asyncio.run(rollouts(environment("null", "AllReduce", "Gather"), context(url)))
    assert all(trace.ok for trace in traces), [trace.errors for trace in traces]
    return {trace.task.data.problem: trace for trace in traces}


def test_end_to_end_against_an_endpoint(answered):
    trace = answered["AllReduce"]
    wrong, expert = (contract.find("AllReduce", case) for case in ("wrong", "expert"))
    assert [attempt["source"] for attempt in trace.info[INFO]] == [wrong.source, expert.source]
    assert trace.reward == value_of(trace.info[INFO][1]) > 0.75 and trace.num_turns == 3
    assert trace.tool_messages[0].content.startswith("Turn 1\n")


def test_calls_without_a_source_spend_the_budget_too(answered):
    """They are no submissions, and a model that makes no other would be asked for ever."""
    trace = answered["Gather"]
    assert trace.num_turns == contract.SETTINGS["max_turns"] and trace.info[INFO] == []
    assert trace.reward == 0 and not trace.state.is_over


def test_the_example_of_the_page_runs(monkeypatch, capsys):
    monkeypatch.setattr(SubprocessRuntime, "prepare_uv_script", prepared)
    with endpoint() as url:
        exec(example("verifiers", endpoint=url), {"__name__": "__main__"})
    key, value, _ = capsys.readouterr().out.split(maxsplit=2)
    assert key == "AllReduce-v0/0" and float(value) > 0.75


def test_the_configuration_for_prime_rl_is_one_of_an_environment():
    """prime-rl is not installed here; its entries of environments are configurations of verifiers, and a name."""
    path = Path(__file__).resolve().parents[3] / "adapters" / "verifiers" / "prime_rl.toml"
    (entry,) = tomllib.loads(path.read_text())["orchestrator"]["train"]["env"]
    assert entry.pop("name") == "pkb"
    config = vf.SingleAgentEnvConfig.model_validate(entry)
    assert type(config.taskset) is KernelTasksetConfig and config.taskset.task.max_turns == 4
    assert type(vf.load_environment(config)) is vf.SingleAgentEnv
