"""Rings of prompts: deterministic, and apart from what is trained on."""

from __future__ import annotations

import json

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.envs.suite import split_names
from pkb_gym.kernels.examples import example_for
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.problems.splits import near_duplicates
from pkb_gym.training import ring_prompts
from pkb_gym.training.inputs.rings import PromptSettings, RingSplit, split_rings, training_rows, without_rings
from pkb_gym.training.inputs.rows import load_prompts
from pkb_gym.training.results.policy_summary import prompt_key
from pkb_gym.training.sft import SftArguments, select_corpus
from tests.training.conversations import tiny_corpus

TRAIN = split_names("train")


@pytest.mark.parametrize("seed", range(5))
def test_no_ring_shares_a_problem_and_near_duplicates_stay_together(seed):
    split = split_rings(TRAIN, 6, seed)
    assert split == split_rings(TRAIN, 6, seed)
    assert len(split.left_out) >= 6 and set(split.trained) | set(split.left_out) == set(TRAIN)
    assert not set(split.trained) & set(split.left_out)
    assert split.test == split_names("test") and not set(split.test) & set(TRAIN)
    for name in split.left_out:
        assert not near_duplicates(name) & set(split.trained), name


def test_seeds_leave_out_others():
    assert len({split_rings(TRAIN, 4, seed).left_out for seed in range(5)}) > 1


def test_problems_of_the_test_split_and_empty_training_are_refused():
    with pytest.raises(ConfigError, match="not of the train split"):
        split_rings([split_names("test")[0]], 0, 0)
    with pytest.raises(ConfigError, match="leaves none to train on"):
        split_rings(TRAIN[:1], 1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six problems to train on or leave out; the test split is cut to its first two."""
    folder = tmp_path_factory.mktemp("rings")
    with pytest.MonkeyPatch.context() as patch:
        usual = split_names
        patch.setattr(
            "pkb_gym.training.inputs.rings.split_names",
            lambda split: usual(split)[:2] if split == "test" else usual(split),
        )
        argv = ["--out", str(folder), "--problems", *TRAIN[:6], "--language", "cpp", "--left_out", "2"]
        ring_prompts.main([*argv, "--variations", "3"])
    return folder


def test_prompts_of_rings_are_apart_from_those_trained_on(folder):
    split = RingSplit.read(folder)
    train = load_prompts(str(folder), "train").to_list()
    held_out = load_prompts(str(folder), "held_out").to_list()
    trained_on = {prompt_key(row) for row in train}
    assert {row["problem"] for row in train} == set(split.trained)
    assert not trained_on & {prompt_key(row) for row in held_out}
    for ring in ("sizes", "left_out", "test"):
        found = {row["problem"] for row in held_out if row["ring"] == ring}
        assert found and found <= set(split.problems(ring)), ring


@pytest.mark.parametrize("style", ["full", "standard"])
def test_a_prompt_that_shows_a_left_out_kernel_is_refused(style):
    shown = example_for(find_problem("AllReduce"), "cpp").problem
    split = RingSplit(seed=0, trained=("AllReduce",), left_out=(shown,), test=())
    settings = PromptSettings(("cpp",), ("tiny",), world_size=2, style=style, seeds=1, variations=0)
    with pytest.raises(ConfigError, match=f"prompts of style {style} show kernels of {shown}"):
        training_rows(split, settings)


def test_supervised_training_sees_no_left_out_problem(tmp_path):
    RingSplit(seed=0, trained=("AllGather",), left_out=("AllReduce",), test=()).write(tmp_path)
    kept = select_corpus(tiny_corpus(), SftArguments(corpus="", rings=str(tmp_path), best_per_problem=1), seed=0)
    assert kept["problem"][:] == ["AllGather"] and kept["reward"][0] == max(
        row["reward"] for row in tiny_corpus() if row["problem"] == "AllGather"
    )
    with pytest.raises(ConfigError, match="none of the corpus's"):
        without_rings(tiny_corpus(), RingSplit(seed=0, trained=("Gather",), left_out=(), test=()))


def test_a_folder_without_a_split_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        RingSplit.read(tmp_path)
    (tmp_path / "rings.json").write_text(json.dumps({"seed": 0}))
    with pytest.raises(ConfigError, match="is no split of"):
        RingSplit.read(tmp_path)
