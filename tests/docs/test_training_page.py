"""The page on training: its commands are understood, and its metrics are those that a run logs."""

from __future__ import annotations

import re
import shlex

import pytest

from pkb_gym.cli.program import make_parser
from pkb_gym.training.inputs.arguments import parse_arguments
from pkb_gym.training.rehearsal.launch import parse_launch
from pkb_gym.training.rehearsal.target import Target
from tests.docs.pages import DOCS, ROOT
from tests.training.test_configs import RECIPES

PAGE = (DOCS / "training.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Those in the page's console blocks, in words."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("words", [w for w in commands() if w[0] == "pkb"], ids=" ".join)
def test_pkb_takes_its_commands(words):
    make_parser().parse_args(words[1:])


LAUNCHES = [w for w in commands() if "launch" in w and "training/rehearse.py" not in w]


@pytest.mark.parametrize("words", LAUNCHES, ids=" ".join)
def test_recipes_take_their_commands(words, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = next(word for word in words if word.startswith("training/") and word.endswith(".py"))
    assert (ROOT / script).is_file() and (ROOT / words[words.index("--config_file") + 1]).is_file()
    kinds, _needed = RECIPES[script.removeprefix("training/").removesuffix(".py").split("_")[0]]
    argv = words[words.index(script) + 1 :]
    if len(kinds) == 3:  # this machine may have no GPU for the trainers' bfloat16
        argv += ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    parse_arguments(kinds, argv, prog=script)


def test_the_rehearsal_takes_its_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    (words,) = [w for w in commands() if "training/rehearse.py" in w]
    target, *command = words[words.index("training/rehearse.py") + 1 :]
    launch = parse_launch(command)
    assert Target.parse(target).gpus == 8 and (launch.recipe, launch.processes) == ("grpo", 4)


def test_there_are_commands_of_every_recipe():
    words_of_all = " ".join(word for words in commands() for word in words)
    assert all(f"training/{name}.py" in words_of_all for name in ("sft", "grpo", "rft", "evaluate_policy"))
    assert {"prompts", "corpus", "counts"} <= {words[2] for words in commands() if words[:2] == ["pkb", "export"]}
