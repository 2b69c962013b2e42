"""The options of `pkb eval` for finding mistakes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pkb_gym.cli.debug_options import add_debug_options, debug_config, open_for_debugging, print_files
from pkb_gym.cli.evaluator_choice import add_evaluator_options
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.examples import failed


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_debug_options(parser)
    add_evaluator_options(parser)
    return parser.parse_args(words)


def test_sanitizers_imply_a_debug_build():
    config = debug_config(EvalConfig(), parsed("--sanitize", "address, thread,address"))
    assert config.debug and config.sanitize == ("address", "thread")
    assert debug_config(EvalConfig(), parsed("--sanitize", "memcheck,initcheck")).sanitize == ("memcheck", "initcheck")
    assert debug_config(EvalConfig(), parsed()) == EvalConfig()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("leak", "no sanitizer 'leak' among address, undefined, thread, memcheck, racecheck, synccheck, initcheck"),
        ("memchek", "Did you mean 'memcheck'?"),
    ],
)
def test_an_unknown_sanitizer_is_answered(name: str, words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parsed("--sanitize", name)
    assert words in capsys.readouterr().err


def test_files_are_written_by_an_evaluator_of_this_process():
    assert open_for_debugging(parsed(), b"key") is None
    evaluator = open_for_debugging(parsed("--keep", "kept"), b"key")
    assert evaluator is not None
    evaluator.close()


@pytest.mark.parametrize("option", ["--keep", "--dump"])
@pytest.mark.parametrize("folder", ["kernel.cpp", "kernel.cpp/kept"])
def test_a_place_without_files_is_answered_before_the_evaluation(option: str, folder: str, tmp_path: Path):
    (tmp_path / "kernel.cpp").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to .*: \S+kernel.cpp is no folder"):
        open_for_debugging(parsed(option, str(tmp_path / folder)), b"key")


@pytest.mark.parametrize("option", ["--keep", "--dump"])
def test_a_service_writes_no_files(option: str):
    with pytest.raises(ConfigError, match="leave out --service"):
        open_for_debugging(parsed(option, "folder", "--service", "http://localhost:1"), None)


def test_the_place_of_files_is_printed_or_why_there_are_none(capsys: pytest.CaptureFixture[str]):
    args = parsed("--keep", "kept", "--dump", "wrong")
    mismatch = failed("output_mismatch").model_copy(update={"durations_s": {"check": 1.0}})
    print_files(args, mismatch)
    printed = capsys.readouterr().err
    assert "the checked calls are in kept; kept/run.sh runs them alone" in printed
    assert "wrong outputs are in wrong" in printed
    print_files(args, failed("compile_error"))
    printed = capsys.readouterr().err
    assert "nothing was kept in kept: no call was made" in printed and "nothing was dumped" in printed
