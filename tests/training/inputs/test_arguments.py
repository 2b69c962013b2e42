"""YAML and command line become dataclasses; a mistake in them is reported in one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from trl import SFTConfig

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import checkpoint_to_resume, parse_arguments, run_recipe


@dataclass
class Arguments:
    corpus: str
    preset: Literal["small", "base"] = "small"
    kinds: list[str] = field(default_factory=lambda: ["single"])
    turns: int = 4


@dataclass
class Others:
    learning_rate: float = 1.0


def config(folder: Path, text: str) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(text)
    return ["--config", str(path)]


def parse(argv: list[str]) -> Arguments:
    return parse_arguments((Arguments, Others), argv, prog="sft")[0]


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    argv = config(tmp_path, "corpus: data\npreset: base\nturns: 2\nlearning_rate: 1e-5\n")
    args, others = parse_arguments((Arguments, Others), [*argv, "--turns", "3"], prog="sft")
    assert args == Arguments(corpus="data", preset="base", turns=3)
    assert others.learning_rate == 1e-5
    assert parse([f"--config={argv[1]}"]) == Arguments(corpus="data", preset="base", turns=2)


def test_items_of_a_list_are_of_the_declared_type(tmp_path):
    assert parse(config(tmp_path, "corpus: data\nkinds: [4, repair]")).kinds == ["4", "repair"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("corpus: data\npreste: base", "sft: no argument 'preste'. Did you mean 'preset'?"),
        ("corpus: data\nxyzzy: 1", "sft: no argument 'xyzzy'. `sft --help` lists all."),
        ("corpus: data\npreset: huge", "sft: preset must be one of small, base, got huge"),
        ("corpus: data\nkinds: repair", "sft: kinds must be a list, got 'repair'; write `kinds: [repair]`"),
        ("corpus: data\nturns: many", "sft: argument --turns: invalid int value: 'many'"),
        ("preset: base", "sft: the following arguments are required: --corpus"),
        ("- corpus", "must contain a YAML mapping"),
        ("corpus: [", "while parsing a flow"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigError) as refused:
        parse(config(tmp_path, text))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--corpus", "data", "--preste", "base"], "sft: no argument 'preste'. Did you mean 'preset'?"),
        (["--corpus", "data", "--pre", "base"], "sft: no argument 'pre'"),
        (["--corpus", "data", "--preset", "huge"], "invalid choice: 'huge'"),
        (["--config"], "sft: --config needs a YAML file"),
        (["--config", "no/such.yaml"], "sft: cannot read no/such.yaml: No such file or directory"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused(argv, words):
    with pytest.raises(ConfigError) as refused:
        parse(argv)
    assert words in str(refused.value)


def sft_config(folder: Path, resume: str | None) -> SFTConfig:
    return SFTConfig(output_dir=str(folder), resume_from_checkpoint=resume, use_cpu=True, report_to="none")


def test_the_last_checkpoint_is_the_newest_whole_one(tmp_path):
    """A run that is killed while it saves leaves a folder that must not be resumed from."""
    assert checkpoint_to_resume(sft_config(tmp_path, None)) is None
    assert checkpoint_to_resume(sft_config(tmp_path, "last")) is None
    for step, state in ((9, "{}"), (10, "{}"), (11, '{"epoch": 1'), (12, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert checkpoint_to_resume(sft_config(tmp_path, "last")) == str(tmp_path / "checkpoint-10")
    named = str(tmp_path / "checkpoint-9")
    assert checkpoint_to_resume(sft_config(tmp_path, named)) == named
    with pytest.raises(ConfigError, match="holds no whole checkpoint"):
        checkpoint_to_resume(sft_config(tmp_path, str(tmp_path / "checkpoint-12")))


def test_a_recipe_ends_with_one_line_where_its_usage_is_wrong(capsys):
    def main() -> None:
        raise ConfigError("no corpus")

    with pytest.raises(SystemExit) as ended:
        run_recipe(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "no corpus\n"
