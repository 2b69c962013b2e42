"""The guard against names of TRL that are gone."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.learner import (
    exact_resumption,
    policy_backend,
    rollout_trainer,
    trainer,
    training_player,
    trl_names,
)


def test_trl_has_every_name():
    trl_names.check_methods()


@pytest.mark.parametrize("name", [*trl_names.OVERRIDDEN, *trl_names.CALLED])
def test_a_method_that_is_gone_is_named(monkeypatch, name):
    for owner in [kind for kind in GRPOTrainer.__mro__ if name in vars(kind)]:
        monkeypatch.delattr(owner, name)
    with pytest.raises(ConfigError, match=rf"trl [\d.]+ has no GRPOTrainer\.{name} any more, .*; install trl 1\.16"):
        trl_names.check_methods()


def test_a_method_with_other_parameters_is_named(monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda self, batch: batch)
    with pytest.raises(ConfigError, match=r"_generate_single_turn takes \(batch\), expected \(prompt_ids, images, "):
        trl_names.check_methods()


def test_an_attribute_that_is_gone_is_named():
    class Changed:
        _buffered_inputs = _dist = _logs = _metrics = None

    with pytest.raises(ConfigError, match=r"sets no GRPOTrainer\._step any more"):
        trl_names.check_attributes(Changed())


def test_the_list_is_complete():
    """Every private name in the trainer's modules that is TRL's or transformers' own is listed, and no other."""
    used = set()
    for module in (exact_resumption, policy_backend, rollout_trainer, trainer, training_player):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute | ast.FunctionDef):
                name = node.attr if isinstance(node, ast.Attribute) else node.name
                if name.startswith("_") and not name.startswith("__"):
                    used.add(name)
    kinds = [kind for kind in GRPOTrainer.__mro__ if kind is not object]
    assigned = re.compile(r"self\.(_[a-z_]+)(?:: [^=\n]+)? = ")
    theirs = {name for kind in kinds for name in assigned.findall(inspect.getsource(kind))}
    theirs |= {name for kind in kinds for name in vars(kind)}
    assert used & theirs == {*trl_names.OVERRIDDEN, *trl_names.CALLED, *trl_names.ATTRIBUTES}
    assert len(trl_names.OVERRIDDEN) == 1
