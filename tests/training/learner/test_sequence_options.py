"""Weights of whole sequences are refused by name, and the reason is shown with numbers."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training import grpo
from pkb_gym.training.learner.sequence_options import refuse_sequence_options
from tests.training.scripted import config


@pytest.mark.parametrize(
    "changes",
    [
        {"importance_sampling_level": "sequence"},
        {"loss_type": "luspo"},
        {"loss_type": "vespo"},
        {"off_policy_mask_threshold": 0.5},
    ],
)
def test_they_are_refused_by_name_for_several_turns_alone(tmp_path, changes):
    ((name, value),) = changes.items()
    with pytest.raises(ConfigError, match=f"{name}={value} weighs whole sequences"):
        refuse_sequence_options(config(tmp_path, **changes), max_turns=2)
    refuse_sequence_options(config(tmp_path, **changes), max_turns=1)


def test_the_defaults_pass(tmp_path):
    refuse_sequence_options(config(tmp_path), max_turns=4)


def test_the_recipe_refuses_before_prompts_or_model_are_read(tmp_path):
    argv = ["--prompts", str(tmp_path / "none"), "--model_name_or_path", str(tmp_path / "none"), "--use_cpu"]
    argv += ["--bf16", "false", "--output_dir", str(tmp_path), "--importance_sampling_level", "sequence"]
    with pytest.raises(ConfigError, match="importance_sampling_level=sequence"):
        grpo.main(argv)


def test_at_sequence_level_turns_of_opposite_advantage_learn_nothing():
    """Two turns of two tokens with advantages +1 and -1; ratio 1: by token the gradients are -1/4 and +1/4."""
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])

    def gradient(level: str) -> list[float]:
        logps = torch.zeros(4, requires_grad=True)
        ratio = torch.exp(logps if level == "token" else logps.mean())
        (-(ratio * advantages).mean()).backward()
        return logps.grad.tolist()

    assert gradient("token") == [-0.25, -0.25, 0.25, 0.25]
    assert gradient("sequence") == [0.0, 0.0, 0.0, 0.0]
