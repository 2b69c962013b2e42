"""Programs for workspaces, as shell scripts, and runs of them over the fake evaluator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pkb_gym.agents.registry import open_agent
from tests.agents.run.runs import Run
from tests.envs.fake_evaluator import FakeEvaluator


def put_python_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `./evaluate` find this Python, and not a version manager that takes long."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


class Programs:
    """Runs scripts in workspaces, without a sandbox unless one is asked for.

    Attributes:
        folder: Folder of the run.
        evaluator: Evaluator of the last run.
    """

    def __init__(self, folder: Path) -> None:
        self._script = folder / "agent.sh"
        self.folder = folder / "run"
        self.evaluator = FakeEvaluator()

    def provider(self, script: str, **options: object):
        self._script.write_text(f"set -u\n{script}\n")
        given = {"sandbox": "none"} | {name: str(value) for name, value in options.items()}
        return open_agent(f"workspace:sh {self._script}", given)

    def run(self, script: str, *, turns: int = 5, evaluator: FakeEvaluator | None = None, **fields) -> Run:
        """Plays a script; options of the agent are `options`, all else are arguments of `Run`."""
        self.evaluator = evaluator or FakeEvaluator()
        provider = self.provider(script, **fields.pop("options", {}))
        settings = dict(provider.settings) | {"command": "sh agent.sh"}
        try:
            return Run(self.folder, provider, self.evaluator, turns=turns, settings=settings, **fields)
        finally:
            provider.close()
