"""Runs: many episodes, their order, their failures, their limits, and going on."""

from __future__ import annotations

import json
import threading

import pytest

from pkb_gym.agents.protocol import AgentError, NotCovered, Reply, RequestRefused
from pkb_gym.agents.run.budget import RunLimits
from pkb_gym.agents.run.identity import RunIdentity
from pkb_gym.agents.run.runner import MAX_FAILURES
from pkb_gym.engine.errors import ConfigError, StoreError
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.conditions import SETTINGS
from tests.agents.conversations import Scripted, turn_of
from tests.agents.run.runs import Run, identity_of, places, recorded
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import PATIENCE_S, until

THREE = ("AllReduce", "Scatter", "Gather")
RIGHT = Reply("", submission="speedup 2", tokens=TokenCounts(prompt=90, completion=10), cost_usd=0.25)


def always(reply=RIGHT):
    return Scripted(lambda *_: reply)


def test_first_samples_of_all_problems_come_first(tmp_path):
    """Stopped early, a run has something of every problem."""
    run = Run(tmp_path, always(), FakeEvaluator(), problems=THREE, samples=2)
    assert places(tmp_path) == [(problem, sample, 0) for sample in (0, 1) for problem in THREE]
    assert (run.outcome.complete, run.outcome.open, run.outcome.stopped) == (6, 0, None)
    assert (run.runner.tally.replies, run.runner.tally.problems()) == (6, (3, 3, 3))
    assert set(run.reported.ends.values()) == {""} and len(run.reported.attempts) == 6


def test_episodes_are_played_side_by_side(tmp_path):
    evaluator = FakeEvaluator(meet=threading.Barrier(3))
    assert Run(tmp_path, always(), evaluator, problems=THREE, jobs=3).outcome.complete == 3


def test_samples_can_be_raised_and_nothing_is_played_twice(tmp_path):
    agent = always()
    Run(tmp_path, agent, FakeEvaluator(), problems=THREE)
    run = Run(tmp_path, agent, FakeEvaluator(), problems=THREE, samples=3)
    assert agent.begun == [(problem, sample) for sample in (0, 1, 2) for problem in THREE]
    assert run.outcome.complete == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turns": 1}, "turns was 2, is 1"),
        ({"settings": {"temperature": 1.0}}, "settings.temperature was None, is 1.0"),
        ({"plateau": 3}, "plateau was None, is 3"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"reward": "kevin"}, "reward was 'default', is 'kevin'"),
    ],
)
def test_a_run_goes_on_under_its_own_configuration_alone(tmp_path, change, words):
    Run(tmp_path, always(), FakeEvaluator(), turns=2)
    with pytest.raises(ConfigError, match=f"holds results under another configuration: {words}. Give the same"):
        Run(tmp_path, always(), FakeEvaluator(), **{"turns": 2} | change)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_goes_on_under_the_conditions_that_results_compare_under(tmp_path, setting):
    """What `pkb compare` refuses to compare never comes into one run, whatever the options leave open."""
    identity = identity_of(("AllReduce",))
    changed = {"world_size": 1, "ranks_per_gpu": 2, "device": "cuda"}.get(setting, "published")
    field = setting if setting in RunIdentity.model_fields else "resolved"
    value: object = changed
    if field == "problem_sha256":
        value = {"AllReduce": changed}
    if field == "resolved":
        value = {"AllReduce": identity.resolved["AllReduce"].model_copy(update={setting: changed})}
    known = {"hardware": "an H200", "problem_sha256": {"AllReduce": "ab"}}
    Run(tmp_path, always(), FakeEvaluator(), **known)
    with pytest.raises(ConfigError, match=f"configuration: {setting} was .*, is '{changed}'. Give the same"):
        Run(tmp_path, always(), FakeEvaluator(), **known | {field: value})


def test_a_run_of_an_earlier_version_goes_on(tmp_path):
    """It has not recorded the versions of its problems."""
    Run(tmp_path, always(), FakeEvaluator())
    Run(tmp_path, always(), FakeEvaluator(), samples=2, problem_sha256={"AllReduce": "ab"})
    assert json.loads((tmp_path / "run.json").read_text())["problem_sha256"] == {"AllReduce": "ab"}


def test_a_run_of_a_version_that_counted_comments_goes_on_while_the_files_are_as_they_were(tmp_path):
    Run(tmp_path, always(), FakeEvaluator(), problem_sha256={"AllReduce": "old"})
    now = {"problem_sha256": {"AllReduce": "new"}, "problem_text_sha256": {"AllReduce": "old"}}
    with pytest.raises(ConfigError, match=r"problem_sha256 was 'old', is 'new' \(one is of an earlier version"):
        Run(tmp_path, always(), FakeEvaluator(), **now | {"problem_text_sha256": {"AllReduce": "edited"}})
    Run(tmp_path, always(), FakeEvaluator(), samples=2, **now)
    stored = json.loads((tmp_path / "run.json").read_text())
    assert {name: stored[name] for name in now} == now
    Run(tmp_path, always(), FakeEvaluator(), samples=2, **now | {"problem_text_sha256": {"AllReduce": "edited"}})


def test_a_call_that_plays_nothing_commits_to_no_setting(tmp_path):
    """A wrong key left a run.json, and the right command was refused for the options that differed."""
    with pytest.raises(ConfigError, match="wrong key"):
        Run(tmp_path, failing(ConfigError("wrong key"), "AllReduce"), FakeEvaluator(), seed=1)
    assert not (tmp_path / "run.json").exists()
    Run(tmp_path, always(), FakeEvaluator(), seed=2)
    with pytest.raises(ConfigError, match="wrong key"):
        Run(tmp_path, failing(ConfigError("wrong key"), "AllReduce"), FakeEvaluator(), seed=2, turns=2)
    assert json.loads((tmp_path / "run.json").read_text())["turns"] == 1


def test_turns_can_be_raised(tmp_path):
    """Episodes that ended for lack of turns go on; those that agent, plateau or refusal ended stay as they are."""

    def script(task, messages):
        number = turn_of(messages)
        if task.problem.name == "Reduce" and number == 1:
            raise RequestRefused("too long")
        if task.problem.name == "Scatter" and number == 1:
            return None
        return Reply("", submission="race" if task.problem.name == "Gather" else f"speedup 1.{number}")

    problems = (*THREE, "Reduce")
    settings = {"problems": problems, "plateau": 1}
    run = Run(tmp_path, Scripted(script), FakeEvaluator(), turns=3, **settings)
    turns = [sum(name == problem for name, _, _ in places(tmp_path)) for problem in problems]
    assert run.outcome.complete == 4 and turns == [3, 1, 2, 2]
    agent = Scripted(script)
    run = Run(tmp_path, agent, FakeEvaluator(), turns=5, **settings)
    assert run.outcome.complete == 4
    assert places(tmp_path)[8:] == [("AllReduce", 0, 3), ("AllReduce", 0, 4)]
    assert "up to 5 sources" in agent.read[-1][0].content, "what the agent is told of its turns is what it has"
    assert json.loads((tmp_path / "run.json").read_text())["turns"] == 5


def test_problems_may_be_added(tmp_path):
    Run(tmp_path, always(), FakeEvaluator())
    Run(tmp_path, always(), FakeEvaluator(), problems=THREE[:2])
    assert places(tmp_path) == [("AllReduce", 0, 0), ("Scatter", 0, 0)]
    assert set(json.loads((tmp_path / "run.json").read_text())["resolved"]) == {"AllReduce", "Scatter"}


def test_results_of_something_else_are_left_alone(tmp_path):
    Run(tmp_path, always(), FakeEvaluator())
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigError, match="holds results of something else"):
        Run(tmp_path, always(), FakeEvaluator())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not hold the settings of its run"):
        Run(tmp_path, always(), FakeEvaluator())


def failing(error, problem="Scatter"):
    def script(task, _):
        if task.problem.name == problem:
            raise error
        return RIGHT

    return Scripted(script)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AgentError("the endpoint failed: \x1b[2J"), "the endpoint failed: \\x1b[2J"),
        (ZeroDivisionError("division"), "the agent crashed: ZeroDivisionError: division"),
        (SystemExit(0), "the agent crashed: SystemExit: 0"),
    ],
)
def test_an_agents_failure_costs_its_own_episode_and_is_no_wrong_answer(tmp_path, error, words):
    run = Run(tmp_path, failing(error), FakeEvaluator(), problems=THREE)
    assert run.outcome.failed == [("Scatter", 0, words)] and run.outcome.complete == 2
    assert [problem for problem, _, _ in places(tmp_path)] == ["AllReduce", "Gather"]
    run = Run(tmp_path, always(), FakeEvaluator(), problems=THREE)
    assert run.outcome.complete == 3 and len(recorded(tmp_path)) == 3


def test_what_no_episode_can_succeed_with_ends_the_run(tmp_path):
    with pytest.raises(ConfigError, match="wrong key"):
        Run(tmp_path, failing(ConfigError("wrong key"), "AllReduce"), FakeEvaluator(), problems=THREE)


def test_a_problem_that_the_agent_does_not_cover_is_skipped(tmp_path):
    class Partial(Scripted):
        def begin(self, task):
            if task.problem.name == "Scatter":
                raise NotCovered("Scatter has no expert.cpp")
            return super().begin(task)

    run = Run(tmp_path, Partial(lambda *_: RIGHT), FakeEvaluator(), problems=THREE)
    assert run.outcome.skipped == {"Scatter": "Scatter has no expert.cpp"}
    assert (run.outcome.complete, run.outcome.open, run.outcome.failed) == (2, 0, [])


def test_a_run_whose_agent_fails_again_and_again_stops(tmp_path):
    """An endpoint that is down would be asked for every one of hundreds of episodes."""
    agent = failing(AgentError("down"), "AllReduce")
    run = Run(tmp_path, agent, FakeEvaluator(), samples=20)
    assert len(run.outcome.failed) == MAX_FAILURES and run.outcome.open == 20 - MAX_FAILURES
    assert "5 episodes in a row failed, the last one so: down" in run.outcome.stopped


@pytest.mark.parametrize(
    ("limits", "words"),
    [(RunLimits(evaluations=2), "budget of 2 evaluations"), (RunLimits(tokens=150), "budget of 150 tokens")],
)
def test_a_budget_ends_the_run_after_the_turn_that_reaches_it(tmp_path, limits, words):
    run = Run(tmp_path, always(), FakeEvaluator(), problems=THREE, limits=limits)
    assert len(recorded(tmp_path)) == 2 and run.outcome.open == 1
    assert words in run.outcome.stopped and run.runner.budget.cost_usd == 0.5
    run = Run(tmp_path, always(), FakeEvaluator(), problems=THREE, limits=limits)
    assert len(recorded(tmp_path)) == 2, "what earlier calls used counts"
    assert Run(tmp_path, always(), FakeEvaluator(), problems=THREE).outcome.complete == 3


def test_a_budget_ends_an_episode_between_two_turns(tmp_path):
    counting = Scripted(lambda _, messages: Reply("", submission=f"speedup 1.{turn_of(messages)}"))
    run = Run(tmp_path, counting, FakeEvaluator(), turns=4, limits=RunLimits(evaluations=3))
    assert len(recorded(tmp_path)) == 3 and run.outcome.open == 1
    Run(tmp_path, counting, FakeEvaluator(), turns=4)
    assert places(tmp_path) == [("AllReduce", 0, turn) for turn in range(4)]


def test_hours_are_those_of_the_call(tmp_path):
    run = Run(tmp_path, always(), FakeEvaluator(), limits=RunLimits(hours=1e-9))
    assert recorded(tmp_path) == [] and "budget of 1e-09 hours" in run.outcome.stopped


def test_ctrl_c_ends_agent_and_evaluator_and_leaves_whole_lines(tmp_path):
    """What comes after it is not recorded: an evaluator that was closed finds failures of its own."""
    waiting, go_on = threading.Event(), threading.Event()

    class Interrupted(FakeEvaluator):
        def close(self):
            super().close()
            go_on.set()

    def script(task, _):
        if task.problem.name == "AllReduce":
            return RIGHT
        if task.problem.name == "Scatter":
            waiting.set()
            assert go_on.wait(PATIENCE_S)
            return RIGHT
        assert waiting.wait(PATIENCE_S)
        until(lambda: recorded(tmp_path))
        raise KeyboardInterrupt

    agent, evaluator = Scripted(script), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path, agent, evaluator, problems=THREE, jobs=3)
    assert agent.closed and evaluator.closed
    assert [problem for problem, _, _ in places(tmp_path)] == ["AllReduce"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pkb-run")]


def test_a_full_disk_ends_the_run(tmp_path, monkeypatch):
    from pkb_gym.engine.errors import InfrastructureError
    from pkb_gym.engine.records.attempt_file import AttemptFile

    def refuse(*_):
        raise InfrastructureError("the disk is full")

    monkeypatch.setattr(AttemptFile, "append", refuse)
    with pytest.raises(StoreError, match="the disk is full"):
        Run(tmp_path, always(), FakeEvaluator())
