"""The stages of a learning run: what is finished is not done again, and what is small is kept."""

from __future__ import annotations

import argparse
import json
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks import learning_run
from benchmarks.learning_run import PER_PROBLEM, Run, Stage, collect, newest_weights, write_rings
from pkb_gym.training.inputs.option_names import check_options, option_names

WRITES = (
    "import pathlib, sys; folder = pathlib.Path(sys.argv[1]); folder.mkdir(exist_ok=True); (folder / 'made').touch()"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of stages whose names are in the order of the real ones; each runs a module that makes its file, or fails."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "prompts.jsonl").write_text(json.dumps({"ring": None, "problem": "Reduce"}) + "\n")
    (tmp_path / "stage_that_works.py").write_text(WRITES)
    (tmp_path / "stage_that_fails.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folders = {"runs": tmp_path / "runs", "prompts": tmp_path / "prompts", "out": tmp_path / "out"}
    args = argparse.Namespace(**folders, skip=[], start_s=0.0, keep_s=0.0)
    return Run(args, time.monotonic() + 600)


def stages(run: Run, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Has the run consist of these stages."""
    found = [Stage(name, [module, str(run.folder / name)], 60, made="made") for name, module in modules.items()]
    monkeypatch.setattr(Run, "stages", lambda _: found)


def finished(run: Run) -> list[str]:
    return sorted(path.stem for path in run.folder.glob("*.finished"))


def test_what_is_finished_is_not_done_again(run: Run, monkeypatch: pytest.MonkeyPatch):
    stages(run, monkeypatch, model="stage_that_works", sft="stage_that_works")
    run.go_on()
    assert finished(run) == ["model", "sft"] and set(run.spent) == {"model", "sft"}
    stages(run, monkeypatch, model="stage_that_fails", sft="stage_that_fails", rft="stage_that_works")
    run.go_on()
    assert finished(run) == ["model", "rft", "sft"]


def test_a_stage_that_others_need_ends_the_call_and_another_does_not(run: Run, monkeypatch: pytest.MonkeyPatch):
    stages(run, monkeypatch, rings_base="stage_that_fails", sft="stage_that_fails", grpo="stage_that_works")
    run.go_on()
    assert finished(run) == [] and set(run.spent) == {"rings_base", "sft"}


TRAINS = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1]); folder.mkdir(exist_ok=True); (folder / "model.safetensors").touch()
(folder / "trainer_state.json").write_text(json.dumps({"global_step": 3, "max_steps": 9}))
"""


@pytest.mark.parametrize(("keep_s", "spent_s", "over"), [(0.0, 0.0, False), (50.0, 0.0, True), (0.0, 450.0, True)])
def test_practice_goes_on_in_the_next_call_unless_time_is_kept_for_others(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_s: float, spent_s: float, over: bool
):
    (tmp_path / "stage_that_trains.py").write_text(TRAINS)
    trains = Stage("grpo", ["stage_that_trains", str(run.folder / "grpo")], 60, total_s=500.0)
    judges = Stage("rings_grpo", ["stage_that_works", str(run.folder / "rings_grpo")], 60, made="made")
    monkeypatch.setattr(Run, "stages", lambda _: [trains, judges])
    run.args.keep_s, run.args.start_s = keep_s, 60.0
    run.folder.mkdir()
    (run.folder / "spent.json").write_text(json.dumps({"grpo": spent_s}))
    run.go_on()
    assert finished(run) == (["grpo", "rings_grpo"] if over else [])


def test_weights_are_those_of_most_steps(tmp_path: Path):
    assert newest_weights(tmp_path) == tmp_path
    for name, step in (("checkpoint-2", 2), ("checkpoint-10", 10), (".", 4)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (tmp_path / name / "model.safetensors").touch()
    assert newest_weights(tmp_path) == tmp_path / "checkpoint-10"
    (tmp_path / "checkpoint-10" / "model.safetensors").unlink()  # not whole
    assert newest_weights(tmp_path) == tmp_path


def test_no_stage_begins_when_the_time_is_up(run: Run, monkeypatch: pytest.MonkeyPatch):
    stages(run, monkeypatch, model="stage_that_works")
    run.deadline = time.monotonic() + learning_run.SPARE_S
    run.go_on()
    assert run.spent == {}


def test_every_stage_is_a_recipe_with_options_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = [f"--{name}={tmp_path / name}" for name in ("gguf", "corpus", "prompts", "runs", "out")]
    seen: list[Stage] = []
    monkeypatch.setattr(Run, "verdict_prompts", 5)
    monkeypatch.setattr(Run, "go_on", lambda run: seen.extend(run.stages()))
    learning_run.main([*folders, "--minutes", "1"])
    assert [stage.name for stage in seen][:6] == ["model", "sft", "rings_sft", "grpo", "rings_grpo", "rings_base"]
    for stage in seen:
        module, *options = stage.arguments
        recipe = Path(learning_run.__file__).parent.parent / "training" / f"{module.rpartition('.')[2]}.py"
        check_options(options, option_names(recipe), recipe.stem)


def test_each_problem_of_a_ring_has_its_first_prompts(tmp_path: Path):
    rows = [{"ring": ring, "problem": "Reduce", "n": n} for n in range(9) for ring in (*reversed(PER_PROBLEM), None)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_rings(tmp_path / "prompts.jsonl", tmp_path / "rings.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "rings.jsonl").read_text().splitlines()]
    for ring, most in PER_PROBLEM.items():
        assert [row["n"] for row in kept if row["ring"] == ring] == list(range(most))
    assert list(dict.fromkeys(row["ring"] for row in kept)) == list(PER_PROBLEM)


def test_weights_and_checkpoints_are_not_collected(tmp_path: Path):
    runs = tmp_path / "runs"
    for name in ("grpo/rollouts.jsonl", "grpo/model.safetensors", "grpo/checkpoint-5/trainer_state.json", "grpo.log"):
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).touch()
    (runs / "grpo" / "checkpoint-5" / "model.safetensors").touch()
    (runs / "grpo" / "checkpoint-5" / "trainer_state.json").write_text('{"global_step": 5}')
    (runs / "grpo" / "trainer_state.json").write_text('{"global_step": 2}')  # of an earlier call
    collect(runs, tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "run.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["grpo.log", "grpo/rollouts.jsonl", "grpo/trainer_state.json"]
        kept = archive.extractfile("grpo/trainer_state.json")
        assert kept is not None and json.load(kept) == {"global_step": 5}, "that of the most steps"
