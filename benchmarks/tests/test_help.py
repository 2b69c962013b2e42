"""Every benchmark has a help text."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import common
from pkb_gym.engine.evaluators.local import LocalEvaluator

FOLDER = Path(benchmarks.__file__).parent
MODULES = [path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
PROGRAMS = sorted([*MODULES, *(path.parent.name for path in FOLDER.glob("*/__main__.py"))])


class Ended(Exception):
    """A program went on although it had been asked for help."""


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 10


@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_help_helps_and_runs_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven took `--help` for nothing, or for the name of a problem, and ran; some overwrote their result."""

    def refuse(*_: object, **__: object) -> None:
        raise Ended

    for owner, thing in ((subprocess, "Popen"), (LocalEvaluator, "__init__"), (common, "write_atomically")):
        monkeypatch.setattr(owner, thing, refuse)
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
