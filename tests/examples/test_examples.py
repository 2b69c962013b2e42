"""The example programs, with a fake evaluator; once with the real one."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from functools import partial

import gymnasium as gym
import pytest

from examples import (
    custom_reward,
    own_problem,
    rollout_loop,
    service,
    trl_tool,
    vector_environment,
    workspace_agent,
)
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.support import problem_folders
from pkb_gym.rewards.user_rewards import load_reward
from tests.docs.pages import ROOT
from tests.serve.fake_owner import TOKEN
from tests.whole_tables import by_make_all, sampled

PROGRAMS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_every_program_is_listed_and_tested():
    text = (ROOT / "examples" / "README.md").read_text()
    assert all(f"]({name})" in text for name in PROGRAMS)
    modules = (custom_reward, own_problem, rollout_loop, service, trl_tool, vector_environment, workspace_agent)
    assert [f"{module.__name__.split('.')[1]}.py" for module in modules] == PROGRAMS


def test_the_rollout_loop_keeps_every_attempt(evaluator, tmp_path):
    def model(messages):
        return "I do not know." if len(messages) == 1 else "```cpp\nspeedup 2.0\n```"

    rewards = rollout_loop.play(model, tmp_path / "attempts.jsonl", evaluator="fake")
    first, second = read_attempts(tmp_path / "attempts.jsonl")
    assert rewards == [0.0, pytest.approx(second.reward)] and second.reward > 1
    assert (first.source, first.reply, first.verdict) == (None, "I do not know.", "no_submission")
    assert (second.source, second.verdict, len(second.messages)) == ("speedup 2.0\n", "passed", 3)


def test_vector_environments(evaluator):
    (fast, passed), (slow, failed) = vector_environment.step(["speedup 2.0", "deadlock"], evaluator="fake")
    assert fast > 1 > slow and (passed, failed) == ("passed", "deadlock")


def test_custom_rewards(evaluator):
    rewards = [custom_reward.squared_speedup, custom_reward.composed]
    squared, composed = custom_reward.rewards_of("speedup 2.0", rewards, evaluator="fake")
    assert squared == 4.0 and 0.2 < composed < 2.2
    assert custom_reward.rewards_of("deadlock", rewards, evaluator="fake") == [0.0, 0.0]
    assert load_reward("examples.custom_reward:squared_speedup") is custom_reward.squared_speedup


def test_a_problem_of_ones_own(evaluator, monkeypatch):
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})
    try:
        slow, fast = own_problem.rewards_of(["deadlock", "speedup 2.0"], evaluator="fake")
    finally:
        gym.registry.pop("PKB/ShardedSoftmax-v0", None)
    assert fast > 1 > slow


def test_the_service(server):
    (passed, high), (failed, low) = service.judge(server.url, ["speedup 2", "deadlock"], TOKEN)
    assert (passed, failed) == ("passed", "deadlock") and high > 1 > low


def test_the_service_needs_a_url(monkeypatch, capsys):
    """It ended in an IndexError."""
    monkeypatch.setattr(sys, "argv", [service.__file__])
    with pytest.raises(SystemExit):
        runpy.run_path(service.__file__, run_name="__main__")
    assert "usage: service.py [-h] URL" in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_helps_and_runs_nothing(name, monkeypatch, capsys, tmp_path):
    """Four evaluated, and one of them wrote its attempts to a file `--help`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setattr(gym, "make", None)
    monkeypatch.setattr(gym, "make_vec", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {name}")


@pytest.mark.slow
@pytest.mark.parametrize(("own_reward", "column"), sampled([(True, "few_submissions"), (False, "KernelTool")], 2))
def test_trl_pays_a_rollout_once(evaluator, scratch_model, tmp_path, own_reward, column):
    """Beside a function that reads the environments, TRL added `get_reward` of the same environments."""
    make = partial(trl_tool.make_trainer, str(scratch_model), str(tmp_path), evaluator="fake")
    with pytest.warns(UserWarning, match="environment_factory"):
        trainer = make(own_reward=own_reward)
    assert trainer.reward_func_names == [column]
    trainer.train()
    assert trainer.state.global_step == 1


RUN_EACH = """\
import runpy, sys

for path in sys.argv[1:]:
    sys.argv = [path]
    print(flush=True)
    runpy.run_path(path, run_name="__main__")
"""
"""A process of its own for each would start an evaluator each."""


@by_make_all
@pytest.mark.slow
def test_programs_run_as_they_are(tmp_path):
    programs = ("rollout_loop", "vector_environment", "custom_reward", "own_problem")
    command = [sys.executable, "-c", RUN_EACH, *(str(ROOT / "examples" / f"{name}.py") for name in programs)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    printed = dict(zip(programs, ran.stdout.strip().split("\n\n"), strict=True))
    for program, text in printed.items():
        paid = [float(number) for number in re.findall(r"\d+\.\d+", text)]
        # Beside other work the expert is slower than the baseline: the square of its speedup may be any number.
        assert len(paid) == 2 and max(paid) > (0 if program == "custom_reward" else 0.5), (program, ran.stdout)
