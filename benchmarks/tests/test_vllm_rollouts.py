"""Rollouts by way of generation: the commands, their figures, and how a way ends."""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import vllm_rollouts
from benchmarks.vllm_rollouts import WAYS, figures, make_options, measure, recipe, running, wait_for
from pkb_gym.training.inputs.option_names import check_options, option_names

PATIENCE_S = 240.0
PRINTS_AND_SLEEPS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Options of a run; a token of its model is a word, and its tokenizer refuses an empty list."""
    words = SimpleNamespace(
        from_pretrained=lambda _: lambda texts, **_: {"input_ids": [text.split() for text in (texts[0], *texts[1:])]}
    )
    monkeypatch.setattr(vllm_rollouts, "AutoTokenizer", words)
    return make_options().parse_args(["--model", "m", "--prompts", "data", "--runs", str(tmp_path)])


def log_steps(out: Path, steps: int = 3) -> None:
    """Steps of two rollouts, as the recipe writes them."""
    out.mkdir(parents=True)
    phases = [{"step": step, "phases_s": {"generation": 2.0, "learning": 1.0}} for step in range(steps)]
    reply = {"reply": "a b c d", "source": "s", "reward": 0.5, "is_right": True, "turn": 0}
    unread = {"reply": "a b", "source": None, "reward": None, "is_right": False, "turn": 1}
    rows = [{"step": step, **one} for step in range(steps) for one in (reply, {**reply, "is_right": False}, unread)]
    for name, lines in (("phases", phases), ("rollouts", rows)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_options_that_the_recipe_knows(way: str, args: argparse.Namespace) -> None:
    command = recipe(args, way, Path("out"))
    words = command[command.index("pkb_gym.training.grpo") + 1 :]
    known = option_names(Path(vllm_rollouts.__file__).parents[1] / "training/grpo.py")
    check_options(words, known, "grpo")
    assert ("--use_vllm" in words) == (way in ("colocate", "server"))


def test_figures_leave_out_the_first_step(args: argparse.Namespace, tmp_path: Path) -> None:
    log_steps(tmp_path / "out")
    found = figures(args, tmp_path / "out")
    assert (found["steps"], found["replies"], found["tokens"], found["turns"]) == (2, 6, 20, 2)
    assert (found["tokens_per_generation_s"], found["tokens_per_s"], found["step_s"]) == (5, 3, 3.0)
    assert (found["submissions"], found["correct"]) == (4, 0.5)


def test_a_run_that_ended_in_its_first_step_has_no_figures(args: argparse.Namespace, tmp_path: Path) -> None:
    log_steps(tmp_path / "out", 1)
    found = figures(args, tmp_path / "out")
    assert (found["steps"], found["tokens"], found["tokens_per_s"], found["correct"]) == (0, 0, None, None)


def test_a_way_past_its_limit_keeps_the_figures_of_its_steps(
    args: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_rollouts, "END_S", 0.5)  # a shell's background commands ignore the signal

    def train(_args: argparse.Namespace, _way: str, out: Path) -> list[str]:
        log_steps(out)
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    monkeypatch.setattr(vllm_rollouts, "recipe", train)
    args.limit_s = 0.0
    found = measure(args, "transformers")
    assert found["failure"] == "stopped at its limit of 0 s" and found["steps"] == 2


def test_processes_end_with_their_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_rollouts, "END_S", 0.5)
    log = tmp_path / "log"
    with running([sys.executable, "-c", PRINTS_AND_SLEEPS], log) as process:
        end = time.monotonic() + PATIENCE_S
        while not log.read_text().strip() and time.monotonic() < end:
            time.sleep(0.01)
        child = os.pidfd_open(int(log.read_text()))
    try:
        assert process.returncode != 0
        assert select.select([child], [], [], PATIENCE_S)[0]
    finally:
        os.close(child)


def test_a_server_that_ends_is_not_waited_for() -> None:
    server = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="status 3"):
        wait_for("http://127.0.0.1:9/health", server, time.monotonic() + PATIENCE_S)
