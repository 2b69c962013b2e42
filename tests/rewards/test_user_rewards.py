"""Rewards of users are tried when they are given, and errors name them."""

from __future__ import annotations

import doctest
import importlib
import sys

import numpy as np
import pytest

from pkb_gym.cli.verdict import reward_of
from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards import BestSoFar, EpisodeScore, find_reward, user_rewards
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.user_rewards import checked_value

MODULE = "tests.rewards.my_rewards"
mine = importlib.import_module(MODULE)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(user_rewards)
    assert result.attempted > 0 and result.failed == 0


def test_functions_and_objects_are_found_by_module_and_name():
    assert find_reward(f"{MODULE}:squared_speedup") is mine.squared_speedup
    assert find_reward(f"{MODULE}:doubled")(timed(speedup=3.0)) == 6.0


def test_a_module_of_the_working_directory_is_found(tmp_path, monkeypatch):
    """Scripts have their own folder on the path, and not the one in which they are called."""
    (tmp_path / "rewards_beside_me.py").write_text("def one(feedback):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find_reward("rewards_beside_me:one")(timed()) == 1
    del sys.modules["rewards_beside_me"]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (f"{MODULE}:squared_speedupp", r"has no 'squared_speedupp'. Did you mean 'squared_speedup'\?"),
        ("tests.rewards.your_rewards:one", "no module 'tests.rewards.your_rewards', neither installed nor in"),
        ("no_such_package.rewards:one", "no module 'no_such_package'"),
        (f"{MODULE}:Doubled", r"reward Doubled is a class; give an instance: Doubled\(...\)"),
        (f"{MODULE}:not_callable", "a reward is a name, module:function, or a function of one Feedback; got 5"),
        (f"{MODULE}:nan", rf"reward {MODULE}.nan returned nan; expected a finite number or None"),
        (f"{MODULE}:nan_when_timed", rf"reward {MODULE}.nan_when_timed returned inf"),
        (f"{MODULE}:tensor", rf"reward {MODULE}.tensor returned Tensor tensor\(1.\); .*; call .item\(\) on tensors"),
        (f"{MODULE}:two_arguments", rf"reward {MODULE}.two_arguments failed on an example Feedback: TypeError"),
        (f"{MODULE}:squared_speedup@eager", "is a function, which decides itself what it compares with"),
    ],
)
def test_a_wrong_reward_is_refused_when_it_is_given(reference, message):
    with pytest.raises(ConfigError, match=message):
        find_reward(reference)


def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("import no_such_dependency\n")
    (tmp_path / "worse_rewards.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing 'broken_rewards' failed: No module named 'no_such_dependency'"):
        find_reward("broken_rewards:one")
    with pytest.raises(ConfigError, match="importing 'worse_rewards' failed: ZeroDivisionError"):
        find_reward("worse_rewards:one")


def test_a_function_that_cannot_be_pickled_is_refused():
    with pytest.raises(ConfigError, match=r"<lambda> cannot be pickled .*; define it at the top level of a module"):
        find_reward(lambda feedback: 1.0)


def test_a_class_is_refused_as_an_object():
    """Calling a class on a feedback made an object, which is no number."""
    with pytest.raises(ConfigError, match=r"reward Doubled is a class"):
        find_reward(mine.Doubled)


def test_a_value_that_goes_wrong_later_is_an_error_that_names_the_function():
    reward = find_reward(f"{MODULE}:nan_when_it_deadlocks")
    for score in (EpisodeScore(reward), EpisodeScore(BestSoFar(reward))):
        assert score.add(timed()).reward == 1.0
        with pytest.raises(ConfigError, match=r"nan_when_it_deadlocks returned nan"):
            score.add(failed("deadlock"))


def test_a_function_that_fails_later_is_an_error_that_names_it_and_its_line():
    """`pkb eval` ended in a traceback and the exit status of a candidate that failed."""
    reward = find_reward(f"{MODULE}:fails_when_it_deadlocks")
    words = r"reward \S+\.fails_when_it_deadlocks failed on a Feedback of \w+: KeyError: .* \(my_rewards\.py:\d+\)$"
    for score in (EpisodeScore(reward), EpisodeScore(BestSoFar(reward))):
        assert score.add(timed()).reward == 1.0
        with pytest.raises(ConfigError, match=words):
            score.add(failed("deadlock"))
    with pytest.raises(ConfigError, match=words):
        reward_of(failed("deadlock"), f"{MODULE}:fails_when_it_deadlocks")


def test_numbers_of_any_kind_become_floats():
    for value in (1, True, 1.0, np.float32(1.0), np.int64(1)):
        assert type(checked_value(mine.doubled, value)) is float
    assert checked_value(mine.doubled, None) is None
