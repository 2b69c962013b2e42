"""The scripted agent of the examples, with the real evaluator: a compile error, a race, a repair, a submission.

`make test` has it repair a race on the CPU, `make all` on emulated GPUs, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pkb_gym
from pkb_gym.agents.registry import open_agent
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.records.config import EvalConfig
from tests.agents.run.runs import Run, recorded
from tests.agents.workspace.programs import put_python_first
from tests.whole_tables import by_make_all

AGENT = Path(pkb_gym.__file__).resolve().parents[1] / "examples" / "workspace_agent.py"


def play(folder, evaluator, device):
    provider = open_agent(f"workspace:{sys.executable} {AGENT} {{solution}}")
    requested = EvalConfig(device=device, world_size=2, size="tiny", until="check")
    run = Run(folder, provider, evaluator, turns=8, requested=requested)
    provider.close()
    assert run.outcome.complete == 1, run.outcome
    *trials, submission = recorded(folder)
    stages = [(trial.feedback.config.until, trial.verdict) for trial in trials]
    assert stages == [("compile", "compile_error"), ("compile", "passed"), ("check", "race"), ("check", "passed")]
    assert (submission.workspace.action, submission.verdict) == ("submit", "passed")
    assert submission.source == trials[-1].source and "barrier" in submission.source
    return trials


@pytest.mark.slow
def test_it_repairs_a_race_on_the_cpu(local_evaluator, all_interrupted_calls, tmp_path, monkeypatch):
    put_python_first(monkeypatch)
    trials = play(tmp_path, local_evaluator, "cpu")
    assert "before rank" in trials[2].feedback.message


@by_make_all
@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
def test_it_repairs_a_race_on_emulated_gpus(local_evaluator, emulator_is_built, tmp_path, monkeypatch):
    put_python_first(monkeypatch)
    trials = play(tmp_path, local_evaluator, "emulated")
    assert "kernel.cu:8" in trials[2].feedback.message
