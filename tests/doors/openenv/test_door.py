"""The OpenEnv server and its clients, over loopback."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from openenv import GenericEnvClient
from openenv.cli.__main__ import app as commands
from typer.testing import CliRunner, Result

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_openenv import KernelAction, KernelEnv
from pkb_openenv.server.app import make_app
from tests.doors import contract
from tests.doors.examples import example
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def served(max_sessions: int = 64) -> Iterator[str]:
    app = make_app(EpisodeSettings.of(contract.settings()), max_sessions)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as url:
        yield url


def play(url: str, case: contract.Expected) -> tuple:
    with GenericEnvClient(base_url=url).sync() as env:
        begun = env.reset(problem=case.problem, seed=contract.SEED)
        result = env.step({"source": case.source})
    assert begun.observation["text"] == case.task and begun.reward is None and not begun.done
    return result.observation, result.reward, result.done


def assert_as_expected(case: contract.Expected, observation: dict, reward: float | None, done: bool) -> None:
    assert observation["text"] == case.text
    assert (observation["failure"], observation["value"], reward) == (case.failure, case.value, case.value)
    assert (observation["speedup"] or 0) == case.speedup
    assert observation["feedback"]["failure"] == case.failure
    assert done is (case.failure == "infrastructure")


@pytest.mark.parametrize("case", contract.expected(), ids=lambda case: case.id)
def test_contract(url, case):
    assert_as_expected(case, *play(url, case))


def test_an_infrastructure_failure_has_no_reward_and_ends_the_episode(url):
    observation, reward, done = play(url, contract.find("AllReduce", "infrastructure"))
    assert reward is None and done and observation["value"] is None


def test_concurrent_sessions_do_not_mix(url):
    cases = [case for case in contract.expected() if case.case in ("wrong", "compile_error")]
    with ThreadPoolExecutor(len(cases)) as threads:
        for case, found in zip(cases, threads.map(lambda case: play(url, case), cases), strict=True):
            assert_as_expected(case, *found)


def test_rewards_of_steps_add_up_to_the_best_value(url):
    wrong, expert = contract.find("AllReduce", "wrong"), contract.find("AllReduce", "expert")
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset(problem="AllReduce", seed=contract.SEED)
        results = [env.step({"source": each.source}) for each in (wrong, expert, wrong, expert)]
        state = env.state()
        late = env.step({"source": expert.source})
    assert [result.observation["turns_left"] for result in results] == [3, 2, 1, 0]
    assert [result.done for result in results] == [False, False, False, True]
    rewards = [result.reward for result in results]
    best = results[1].observation["value"]
    assert rewards == pytest.approx([wrong.value, best - wrong.value, 0, 0]) and sum(rewards) == pytest.approx(best)
    assert (state["best_turn"], state["best_source"], state["step_count"]) == (2, expert.source, 4) and state["is_over"]
    assert late.reward == 0 and late.done and late.observation["text"].startswith("All 4 submissions")


def test_a_session_that_its_client_abandons_is_ended():
    """With room for one session, the next client gets in once the server has ended the one whose client is gone."""
    case = contract.find("Gather", "compile_error")
    with served(max_sessions=1) as url:

        async def abandon() -> None:
            client = GenericEnvClient(base_url=url)
            await client.connect()
            await client.reset(problem="AllReduce", seed=1)
            client._ws.transport.abort()  # no close frame: the process is gone

        asyncio.run(abandon())
        found = []

        def gets_in() -> bool:
            try:
                found.append(play(url, case))
            except (ConnectionError, RuntimeError):
                return False
            return True

        until(gets_in)
        assert_as_expected(case, *found[0])


def test_typed_client(url):
    case = contract.find("AllReduce", "expert")
    with KernelEnv(base_url=url).sync() as env:
        assert env.reset(problem=case.problem, seed=contract.SEED).observation.text == case.task
        result = env.step(KernelAction(source=case.source))
        assert (result.reward, result.observation.text) == (case.value, case.text)
        assert result.observation.feedback["problem"] == case.problem
        assert env.state().best_value == case.value


def test_source_is_the_only_required_field(url):
    schema = httpx.get(f"{url}/schema").json()
    assert schema["action"]["required"] == ["source"]
    assert {"text", "failure", "value", "feedback"} <= set(schema["observation"]["properties"])
    assert "best_value" in schema["state"]["properties"]


def test_bad_requests_are_explained(url):
    with GenericEnvClient(base_url=url).sync() as env:
        for arguments, words in [
            ({"problem": "AllReduec"}, "Did you mean 'AllReduce'"),
            ({"split": "train"}, "split and index together"),
            ({"split": "dev", "index": 0}, "no split 'dev'"),
            ({"colour": "red"}, "no argument colour"),
        ]:
            with pytest.raises(RuntimeError, match=re.escape(words)):
                env.reset(**arguments)
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step({"source": "int main;"})


def test_tasks_of_splits(url):
    with httpx.Client(base_url=url) as http:
        assert [split["name"] for split in http.get("/pkb/splits").json()] == ["train", "test", "all"]
        assert http.post("/pkb/num_tasks", json={"split": "all"}).json() == {"num_tasks": 87}
        tasks = http.post("/pkb/tasks", json={"split": "test"}).json()["tasks"]
        assert {"problem", "category", "summary", "index"} <= set(tasks[0])
        last = {"split": "test", "index": len(tasks) - 1}
        assert http.post("/pkb/task", json=last).json()["task"] == tasks[-1]
        beyond = {"split": "test", "index": len(tasks)}
        assert http.post("/pkb/task", json=beyond).status_code == 400
        some = http.post("/pkb/task_range", json={"split": "test", "start": 1, "stop": 3}).json()["tasks"]
        assert some == tasks[1:3]
    with GenericEnvClient(base_url=url).sync() as env:
        assert env.reset(**last).observation["problem"] == tasks[-1]["problem"]


def test_web_page(monkeypatch):
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "true")
    with served() as url, httpx.Client(base_url=url, follow_redirects=True, timeout=PATIENCE_S) as http:
        assert "html" in http.get("/web").headers["content-type"]
        assert http.get("/metadata").json()["name"] == "pkb"


def openenv(*arguments: str) -> Result:
    """`openenv validate`, in this process: another one would import the framework again."""
    return CliRunner().invoke(commands, ["validate", *arguments], catch_exceptions=False)


def test_openenv_validates_package_and_server(url):
    """Levels above `static` build the image, which needs Docker; the running server is probed instead."""
    package = openenv(str(ROOT / "adapters" / "openenv"), "--level", "static", "--skip-build")
    assert package.exit_code == 0 and "Verdict: PASS" in package.output, package.output
    running = openenv("--url", url)
    assert running.exit_code == 0 and "Verdict: PASS" in running.output and "FAIL" not in running.output


def test_the_example_of_the_page_runs(url, capsys):
    expert = contract.find("AllReduce", "expert").source
    tasks = []

    def write_kernel(task: str) -> str:
        tasks.append(task.splitlines()[0])
        return expert

    exec(example("openenv", server=url), {"write_kernel": write_kernel})
    reward, done, speedup = capsys.readouterr().out.split()
    assert tasks == ["# AllReduce"] and float(reward) > 0.75 and done == "False" and float(speedup) > 0
