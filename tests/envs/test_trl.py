"""The TRL adapter: what TRL would find in it, and what a rollout is paid."""

from __future__ import annotations

import doctest
import inspect
from functools import partial

import pytest

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.envs import KernelTool, SubmissionTool, trl


@pytest.fixture
def tool(evaluator):
    return KernelTool(["AllReduce", "Gather"], max_turns=3, evaluator="fake", device="cpu", world_size=2)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(trl)
    assert result.attempted and not result.failed


def test_submit_is_the_only_tool(tool):
    """TRL makes a tool of every public method but `reset` and `get_reward`."""
    methods = {name for name, _ in inspect.getmembers(tool, predicate=inspect.ismethod) if not name.startswith("_")}
    assert methods == {"reset", "submit", "get_reward"}


def test_beside_reward_functions_of_users_there_is_one_without_its_own(evaluator):
    """TRL added `get_reward` to a function that read the same value from the environments."""
    tool = SubmissionTool(["AllReduce"], evaluator="fake", device="cpu", world_size=2)
    assert {name for name, _ in inspect.getmembers(type(tool), inspect.isfunction) if name[0] != "_"} == {
        "reset",
        "submit",
    }
    tool.reset()
    tool.submit("speedup 10")
    assert tool.episode_value == pytest.approx(1.3, abs=1e-3) and [one.source for one in tool.submissions] == [
        "speedup 10"
    ]


def test_a_reward_that_is_read_twice_warns(tool):
    tool.reset(problem="AllReduce")
    tool.submit("speedup 10")
    tool.get_reward()
    with pytest.warns(UserWarning, match="read twice: TRL adds KernelTool.get_reward .* Take SubmissionTool"):
        tool.get_reward()


def test_submit_has_what_a_tool_schema_is_made_of(tool):
    signature = inspect.signature(tool.submit, eval_str=True)
    assert signature.return_annotation is str
    assert {name: parameter.annotation for name, parameter in signature.parameters.items()} == {"source": str}
    doc = inspect.getdoc(tool.submit)
    assert doc.splitlines()[0].startswith("Compile a kernel")
    assert "Args:\n    source: The complete source file" in doc and "Returns:\n" in doc


def test_it_is_made_without_arguments(evaluator):
    factory = partial(KernelTool, split=["Gather"], evaluator="fake", device="cpu")
    assert factory().reset().startswith("# Gather")


def test_a_rollout_is_paid_its_best_submission(tool):
    assert tool.reset(problem="AllReduce", seed=1, prompt=[{"role": "user", "content": ""}]).startswith("# AllReduce")
    assert tool.get_reward() == 0.0
    assert "2 submissions left." in tool.submit("speedup 10")
    assert "1 submission left." in tool.submit("compile_error")
    assert tool.get_reward() == pytest.approx(1.3, abs=1e-3)


def test_submissions_beyond_the_last_are_not_judged(tool, evaluator):
    tool.reset(problem="AllReduce")
    for number in range(3):
        tool.submit(f"compile_error {number}")
    assert tool.submit("speedup 10") == "All 3 submissions of this episode are spent; nothing more is judged."
    assert len(evaluator.requested) == 3 and tool.get_reward() == 0.01


def test_a_fault_of_ours_gives_no_reward(tool, evaluator):
    tool.reset(problem="AllReduce")
    tool.submit("speedup 2")
    tool.submit("infrastructure")
    assert tool.get_reward() is None
    assert "nothing more is judged" in tool.submit("speedup 2") and len(evaluator.requested) == 2
    tool.reset(problem="AllReduce")
    assert tool.get_reward() == 0.0


def test_an_evaluator_that_cannot_be_reached_gives_no_reward(tool, evaluator, monkeypatch):
    def evaluate(*_: object) -> None:
        raise InfrastructureError("http://node:8900 cannot be reached")

    tool.reset(problem="AllReduce")
    tool.submit("speedup 2")
    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    assert "http://node:8900 cannot be reached; nothing more is judged" in tool.submit("speedup 3")
    assert tool.get_reward() is None


def test_an_exception_that_trl_answers_the_model_with_gives_no_reward(tool, evaluator, monkeypatch):
    """TRL catches every exception of a tool: the rollout went on, and was paid 0 for a failure of ours."""

    def evaluate(*_: object) -> None:
        raise ConfigError("this service judges on device 'cuda'; the request asks for 'cpu'")

    tool.reset(problem="AllReduce")
    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    with pytest.raises(ConfigError):
        tool.submit("speedup 3")
    assert tool.get_reward() is None


def test_the_rows_of_a_group_share_their_inputs(tool, evaluator):
    for _ in range(2):
        tool.reset(problem="AllReduce", seed=9)
        tool.submit("speedup 1")
    assert evaluator.requested[0][2].seed == evaluator.requested[1][2].seed
    tool.reset(problem="AllReduce", seed=10)
    tool.submit("speedup 1")
    assert evaluator.requested[2][2].seed != evaluator.requested[0][2].seed


def test_rewards_can_be_chosen(evaluator):
    tool = KernelTool(["AllReduce"], evaluator="fake", device="cpu", reward="fast_p:1.0")
    tool.reset()
    tool.submit("speedup 2")
    assert tool.get_reward() == 1.0
