"""Task folders for Harbor: all 87, whole or not there, and a verifier that posts and never runs a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pkb_gym.adapters.harbor.task_folder import HarborTask, write_task
from pkb_gym.cli import main
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs.evaluator_registry import close_evaluators
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from pkb_gym.rewards import find_reward
from pkb_gym.serve.server import HttpServer
from tests.fake_gpus import gpu_node
from tests.serve.fake_owner import ON_TWO, TOKEN, Owners, make_service

PROBLEM = find_problem("AllReduce")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("harbor") / "tasks"
    assert main(["export", "harbor", "--out", str(out), "--world-size", "2", "--until", "check"]) == 0
    return out


@pytest.fixture(scope="module")
def server():
    with make_service(Owners()) as service, HttpServer(service, TOKEN) as server:
        yield server


@pytest.fixture
def judge(tasks, server, tmp_path):
    """Runs the verifier of AllReduce on a source; its status, its reward (None where it wrote none) and its output."""

    def run(source: str | Path | None, url: str = server.url, token: str = TOKEN):
        artefact = tmp_path / "solution.cpp"
        artefact.unlink(missing_ok=True)
        if isinstance(source, Path):
            artefact.symlink_to(source)
        elif source is not None:
            artefact.write_bytes(source.encode(errors="surrogateescape"))
        folder = tasks / "all_reduce" / "tests"
        ran = subprocess.run(
            [sys.executable, "-I", folder / "judge.py", folder / "request.json", artefact, tmp_path],
            env={**os.environ, "PKB_SERVICE_URL": url, "PKB_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=60,
        )
        path = tmp_path / "reward.json"
        reward = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return ran.returncode, reward, ran.stdout + ran.stderr

    return run


def test_every_problem_has_a_task(tasks):
    names = set()
    for problem in catalogue():
        folder = tasks / Path(problem.declared_in).parent.name
        config = tomllib.loads((folder / "task.toml").read_text())
        names.add(config["task"]["name"])
        assert config["metadata"]["problem"] == problem.name
        assert config["verifier"]["environment_mode"] == "separate", "a kernel never runs beside the verifier"
        assert problem.summary in (folder / "instruction.md").read_text()
        request = json.loads((folder / "tests" / "request.json").read_text())
        assert request["problem"] == problem.name and request["config"]["world_size"] == 2
        expert = expert_source(problem)
        assert (folder / "solution").exists() == (expert is not None)
        if expert is not None:
            assert (folder / "solution" / "expert.cpp").read_text() == expert
            assert os.access(folder / "solution" / "solve.sh", os.X_OK)
            assert expert not in (folder / "instruction.md").read_text()
        assert os.access(folder / "tests" / "test.sh", os.X_OK)
        for hidden in ("token", "expert"):
            assert hidden not in (folder / "environment" / "Dockerfile").read_text()
    assert len(names) == 87 and len(list(tasks.iterdir())) == 87


def test_the_reward_is_that_of_the_service(judge):
    status, reward, _ = judge("speedup 2")
    owners = Owners()
    expected = find_reward("default")(owners().evaluate(PROBLEM, "speedup 2", ON_TWO, lambda _: None))
    assert (status, reward) == (0, {"reward": expected, "passed": 1, "submitted": 1, "speedup": pytest.approx(2, 0.2)})
    status, reward, text = judge("compile_error")
    assert status == 0 and reward["passed"] == 0 and 0 < reward["reward"] < expected and text.strip()


def test_nothing_submitted_is_rewarded_with_nothing(judge):
    status, reward, text = judge(None, url="http://127.0.0.1:1")
    assert (status, reward) == (0, {"reward": 0.0, "passed": 0, "submitted": 0}) and "nothing was submitted" in text


def test_bytes_that_are_no_text_are_judged(judge):
    status, reward, _ = judge("\udcff")
    assert status == 0 and reward["passed"] == 0 and reward["submitted"] == 1


def test_an_artefact_of_any_length_has_a_reward(judge):
    """The service closed the connection on it, and the agent of a bad kernel chose to have no score."""
    status, reward, text = judge("rejected" + "x" * (20 << 20))
    assert status == 0 and reward["submitted"] == 1 and reward["passed"] == 0, text


def test_a_link_to_a_file_beside_the_verifier_is_no_artefact(judge, tmp_path):
    (tmp_path / "secret").write_text("speedup 2")
    status, reward, text = judge(tmp_path / "secret")
    assert (status, reward["submitted"]) == (0, 0) and "nothing was submitted" in text


@pytest.mark.parametrize(("source", "words"), [("infrastructure", "could not judge"), ("refuse", "no such thing here")])
def test_a_failure_that_is_not_the_kernel_s_is_no_score(judge, source, words):
    status, reward, text = judge(source)
    assert (status, reward) == (1, None) and words in text


def test_no_token_is_shown(judge):
    status, reward, text = judge("speedup 1", token="a-wrong-token")
    assert (status, reward) == (1, None) and "the token is wrong" in text and "a-wrong-token" not in text


def test_a_variable_that_is_not_set_is_named(judge):
    status, reward, text = judge("speedup 1", token="")
    assert (status, reward) == (1, None) and text == "PKB_TOKEN not set: the url of `pkb serve` and its token\n"


def test_a_task_takes_the_place_of_an_earlier_one_alone(tmp_path):
    task = HarborTask(PROBLEM, ON_TWO, "cpp")
    place = write_task(tmp_path, task, this_machine())
    (place / "left over").touch()
    assert write_task(tmp_path, task, this_machine()) == place and not (place / "left over").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["all_reduce"]
    (place / "task.toml").write_text("# my own\n")
    with pytest.raises(ConfigError, match="is no task of `pkb export harbor`; --out names another folder"):
        write_task(tmp_path, task, this_machine())


def test_an_unknown_reward_is_refused(tmp_path, capsys):
    assert main(["export", "harbor", "--out", str(tmp_path / "tasks"), "--reward", "os:getpid"]) == 2
    assert "no preset of rewards 'os:getpid'" in capsys.readouterr().err and not (tmp_path / "tasks").exists()


def test_texts_are_about_the_machine_of_the_service(tmp_path, monkeypatch):
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    with make_service(Owners(described=gpu_node(4))) as service, HttpServer(service, TOKEN) as server:
        command = ["export", "harbor", "--out", str(tmp_path), "--problems", "AllReduce", "--language", "cuda"]
        assert main([*command, "--evaluator", server.url]) == 0
    close_evaluators()
    text = (tmp_path / "all_reduce" / "instruction.md").read_text()
    assert "each on its own NVIDIA H200" in text and "(sm_100a)" in text
