"""Options of the recipes, read without importing a library."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from trl import GRPOConfig, ModelConfig, SFTConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training import evaluate_policy, grpo, merge_adapter, restore_weights, rft, scratch_model, sft, smoke
from pkb_gym.training.inputs.option_names import OptionsNotInText, check_options, option_names

RECIPES = {
    evaluate_policy: (evaluate_policy.EvaluationArguments, ModelConfig),
    grpo: (grpo.GrpoArguments, GRPOConfig, ModelConfig),
    merge_adapter: (merge_adapter.MergeArguments,),
    restore_weights: (restore_weights.RestoreArguments,),
    rft: (rft.RftArguments, SFTConfig, ModelConfig),
    scratch_model: (scratch_model.ScratchArguments,),
    sft: (sft.SftArguments, SFTConfig, ModelConfig),
    smoke: (smoke.SmokeArguments,),
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_the_texts_hold_every_option(recipe):
    names = option_names(Path(recipe.__file__))
    declared = {field.name for kind in RECIPES[recipe] for field in fields(kind)}
    assert names == declared | {f"no_{name}" for name in declared}


RUN = """
import runpy, sys
module, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__")
finally:
    print(*{"trl", "torch", "transformers", "accelerate", "peft", "tokenizers"} & set(sys.modules))
"""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_a_mistyped_option_is_answered_before_a_library_is_imported(recipe):
    """It took as long as the import of TRL."""
    command = [sys.executable, "-c", RUN, recipe.__name__, "--model_nam", "x"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "\n")
    assert " no argument 'model_nam'. " in ran.stderr and ran.stderr.count("\n") == 1


def test_right_options_are_left_to_the_parser():
    words = ["--config=sft.yaml", "--learning-rate", "-1", "--output_dir", "x", "--no-bf16", "--help"]
    check_options(words, option_names(Path(sft.__file__)), "sft")


def test_values_are_no_options():
    check_options(["--config", "a.yaml", "--turns=-3", "-1", "--", "word"], {"turns"}, "sft")
    with pytest.raises(ConfigError, match=r"sft: no argument 'turn'\. Did you mean 'turns'\?"):
        check_options(["--turn=3"], {"turns"}, "sft")


def test_options_not_in_a_text_are_left_to_the_parser(tmp_path):
    recipe = tmp_path / "recipe.py"
    for text in ("", "parse_arguments(kinds)", "parse_arguments((made(),))", "parse_arguments((Missing,))"):
        recipe.write_text(f"# {text}\n{text}\n")
        option_names.__globals__["_tree"].cache_clear()
        with pytest.raises(OptionsNotInText):
            option_names(recipe)
