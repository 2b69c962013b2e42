"""The stages of a learning run: what is finished is not done again, and what is small is kept."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import tarfile
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import learning_run, learning_weights
from benchmarks.learning_prompts import PER_PROBLEM, in_turn_of_problems, write_practice, write_rings
from benchmarks.learning_run import Run, collect
from benchmarks.learning_stages import Stage
from benchmarks.learning_weights import judged_weights, keep_weights, newest_weights
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
    numbers = {"seed": 0, "start_s": 0.0, "keep_s": 0.0, "grpo_submissions": 0}
    args = argparse.Namespace(**folders, **numbers, skip=[], resume_from=None)
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
import json, numpy, pathlib, sys
from safetensors.numpy import save_file
folder = pathlib.Path(sys.argv[1]); folder.mkdir(exist_ok=True)
drawn = numpy.random.default_rng(int(sys.argv[2])).standard_normal((64, 32), dtype="float32")
save_file({"layer.weight": drawn}, folder / "model.safetensors")
(folder / "trainer_state.json").write_text(json.dumps({"global_step": 3, "max_steps": int(sys.argv[3])}))
"""


@pytest.mark.parametrize(("keep_s", "spent_s", "over"), [(0.0, 0.0, False), (50.0, 0.0, True), (0.0, 450.0, True)])
def test_practice_goes_on_in_the_next_call_unless_time_is_kept_for_others(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_s: float, spent_s: float, over: bool
):
    (tmp_path / "stage_that_trains.py").write_text(TRAINS)
    trains = Stage("grpo", ["stage_that_trains", str(run.folder / "grpo"), "1", "9"], 60, total_s=500.0)
    judges = Stage("rings_grpo", ["stage_that_works", str(run.folder / "rings_grpo")], 60, made="made")
    monkeypatch.setattr(Run, "stages", lambda _: [trains, judges])
    run.args.keep_s, run.args.start_s = keep_s, 60.0
    run.folder.mkdir()
    (run.folder / "spent.json").write_text(json.dumps({"grpo": spent_s}))
    run.go_on()
    assert finished(run) == (["grpo", "rings_grpo"] if over else [])


@pytest.fixture
def learning(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Whose stages write weights of their own seed."""
    (tmp_path / "stage_that_trains.py").write_text(TRAINS)
    made = [
        Stage(name, ["stage_that_trains", str(run.folder / name), str(seed), "3"], 60, total_s, "model.safetensors")
        for seed, (name, total_s) in enumerate([("model", None), ("sft", None), ("grpo", 500.0)])
    ]
    monkeypatch.setattr(Run, "stages", lambda _: made)
    return run


def weights_of(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["layer.weight"]


def test_policies_are_those_that_the_parts_give_and_another_place_goes_on_with_them(
    learning: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learning.go_on()
    assert finished(learning) == ["grpo", "model", "sft"]
    out, runs = tmp_path / "out", learning.folder
    assert sorted(path.name for path in out.glob("*.safetensors")) == ["grpo.0.safetensors", "sft.0.safetensors"]
    assert max(path.stat().st_size for path in out.iterdir()) < 2**24
    assert set(learning.kept) == {"sft", "grpo"} and learning.kept["grpo"]["step"] == 3

    elsewhere = tmp_path / "elsewhere"
    learning.args.runs, learning.args.out, learning.args.resume_from = elsewhere, tmp_path / "out2", out
    shutil.copytree(runs / "model", elsewhere / "model")
    learning.args.skip = ["model", "grpo"]
    learning.go_on()
    assert finished(learning) == ["sft"] and "grpo" not in {path.name for path in elsewhere.iterdir()}
    assert torch.equal(weights_of(elsewhere / "sft"), weights_of(runs / "sft"))
    assert torch.equal(weights_of(elsewhere / learning_weights.BEGIN), weights_of(runs / "grpo"))
    assert not torch.equal(weights_of(runs / "grpo"), weights_of(runs / "sft"))
    assert learning_weights.step_of(elsewhere / learning_weights.BEGIN) == 3


def test_practice_goes_on_with_the_weights_of_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = [f"--{name}={tmp_path / name}" for name in ("gguf", "corpus", "prompts", "runs", "out")]
    seen: list[str] = []

    def begins(run: Run) -> None:
        grpo = next(stage for stage in run.stages() if stage.name == "grpo").arguments
        seen.append(Path(grpo[grpo.index("--model_name_or_path") + 1]).name)

    monkeypatch.setattr(Run, "go_on", begins)
    learning_run.main([*folders, "--minutes", "1"])
    (tmp_path / "runs" / learning_weights.BEGIN).mkdir()
    (tmp_path / "runs" / learning_weights.BEGIN / "model.safetensors").touch()
    learning_run.main([*folders, "--minutes", "1"])
    assert seen == ["sft", learning_weights.BEGIN]


def test_weights_that_are_too_large_stay(learning: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learning_weights, "OUT_BYTES", 3000)
    learning.go_on()
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["sft.0.safetensors"]
    kept = sorted(path.name for path in (learning.folder / "kept").iterdir())
    assert kept == ["grpo.0.safetensors", "sft.0.safetensors"]


def test_weights_that_cannot_be_stored_end_no_run(learning: Run, capsys: pytest.CaptureFixture[str]):
    learning.go_on()
    (learning.folder / "sft" / "model.safetensors").write_text("cut off")
    found = keep_weights("grpo", learning.folder, learning.args.out, is_over=True)
    assert found == {} and "grpo: the weights are not stored" in capsys.readouterr().out


def test_weights_are_those_of_most_steps(tmp_path: Path):
    assert newest_weights(tmp_path) == tmp_path
    for name, step in (("checkpoint-2", 2), ("checkpoint-10", 10), (".", 4)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (tmp_path / name / "model.safetensors").touch()
    assert newest_weights(tmp_path) == tmp_path / "checkpoint-10"
    (tmp_path / "checkpoint-10" / "model.safetensors").unlink()  # not whole
    assert newest_weights(tmp_path) == tmp_path


def test_the_policy_that_is_judged_is_that_of_the_best_steps(tmp_path: Path):
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10}')
    (tmp_path / "checkpoint-10" / "model.safetensors").touch()
    assert judged_weights(tmp_path) == newest_weights(tmp_path) == tmp_path / "checkpoint-10"
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.safetensors").touch()
    assert judged_weights(tmp_path) == tmp_path / "best"
    assert newest_weights(tmp_path) == tmp_path / "checkpoint-10", "what a run goes on with"


def test_no_stage_begins_when_the_time_is_up(run: Run, monkeypatch: pytest.MonkeyPatch):
    stages(run, monkeypatch, model="stage_that_works")
    run.deadline = time.monotonic() + learning_run.SPARE_S
    run.go_on()
    assert run.spent == {}


def test_every_stage_is_a_recipe_with_options_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folders = [f"--{name}={tmp_path / name}" for name in ("gguf", "corpus", "prompts", "runs", "out")]
    seen: list[Stage] = []
    monkeypatch.setattr(Run, "go_on", lambda run: seen.extend(run.stages()))
    learning_run.main([*folders, "--minutes", "1"])
    assert [stage.name for stage in seen][:6] == ["model", "sft", "grpo", "rings_sft", "rings_grpo", "rings_base"]
    for stage in seen:
        module, *options = stage.arguments
        recipe = Path(learning_run.__file__).parent.parent / "training" / f"{module.rpartition('.')[2]}.py"
        check_options(options, option_names(recipe), recipe.stem)


def command_line(tmp_path: Path, *more: str) -> list[str]:
    return [
        *(f"--{name}={tmp_path / name}" for name in ("gguf", "corpus", "prompts", "runs", "out")),
        "--minutes",
        "1",
        *more,
    ]


def test_options_of_the_loss_reach_practice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(Run, "go_on", lambda run: seen.append(list(run.stages()[2].arguments)))
    learning_run.main(command_line(tmp_path))
    given = ["--beta", "0.04", "--negative-weight", "0.5", "--generate-ahead", "--drop-uniform-groups"]
    given += ["--best-window", "10"]
    learning_run.main(command_line(tmp_path, *given))
    names = ("--beta", "--negative_weight", "--generate_ahead", "--drop_uniform_groups", "--best_window")
    assert [[of[of.index(name) + 1] for name in names] for of in seen] == [
        ["0.0", "1.0", "false", "false", "0"],
        ["0.04", "0.5", "true", "true", "10"],
    ]
    assert Path(seen[0][seen[0].index("--prompts") + 1]) == tmp_path / "runs" / "practice.jsonl"
    assert seen[0][seen[0].index("--shuffle_dataset") + 1] == "false", "or steps would miss problems"
    assert "--reference_model" not in seen[0]
    assert Path(seen[1][seen[1].index("--reference_model") + 1]) == tmp_path / "runs" / "sft"


def test_evaluations_take_turns_with_the_policy_in_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Stage] = []
    monkeypatch.setattr(Run, "go_on", lambda run: seen.extend(run.stages()))
    farm = ["--evaluation-gpus", "0", "1", "--evaluation-compilers", "20"]
    learning_run.main(command_line(tmp_path, "--take-turns", "--temperatures", "0.3", *farm))
    judged = [list(stage.arguments) for stage in seen if "--evaluation" in stage.arguments]
    assert len(judged) == 9
    for words in judged:
        assert words[words.index("--evaluation") + 1] == "colocated"
        at = words.index("--evaluation_gpus")
        assert words[at : at + 5] == ["--evaluation_gpus", "0", "1", "--evaluation_compilers", "20"]
    assert json.loads((tmp_path / "runs" / "about.json").read_text())["takes_turns"] is True


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--services", "7"], "--take-turns is for one service"),
        (["--services", "1", "--generate-ahead"], "which --take-turns rules out"),
    ],
)
def test_turns_are_of_one_service_and_of_batches_in_order(tmp_path: Path, capsys, more: list[str], words: str):
    with pytest.raises(SystemExit):
        learning_run.main(command_line(tmp_path, "--take-turns", *more))
    assert words in capsys.readouterr().err


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


def test_each_step_of_practice_has_every_problem(tmp_path: Path):
    """Rows of one problem follow each other in the file of the prompts; held-out ones are not practised on."""
    rows = [{"ring": None, "problem": name, "n": n} for name in ("Reduce", "Gather", "Scatter") for n in range(4)]
    rows.append({"ring": "sizes", "problem": "Reduce", "n": 9})
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = {}
    for seed in (0, 1):
        write_practice(tmp_path / "prompts.jsonl", tmp_path / "practice.jsonl", seed)
        kept[seed] = [json.loads(line) for line in (tmp_path / "practice.jsonl").read_text().splitlines()]
        for begin in range(0, 12, 3):
            assert {row["problem"] for row in kept[seed][begin : begin + 3]} == {"Reduce", "Gather", "Scatter"}
        assert sorted(map(str, kept[seed])) == sorted(map(str, rows[:-1]))
    assert kept[0] != kept[1]


def test_a_problem_of_fewer_prompts_is_missing_in_the_last_rounds():
    rows = [{"problem": name} for name in ("Reduce", "Reduce", "Reduce", "Gather")]
    assert [row["problem"] for row in in_turn_of_problems(rows, 0)] == ["Reduce", "Gather", "Reduce", "Reduce"]
    assert in_turn_of_problems([], 0) == []


def test_it_takes_the_commands_of_the_page_on_training():
    page = Path(learning_run.__file__).parent.parent / "docs" / "training.md"
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in "".join(blocks).replace("\\\n", " ").splitlines()]
    commands = [words for words in lines if f"benchmarks.{learning_run.NAME}" in words]
    assert commands
    for words in commands:
        learning_run.make_options().parse_args(words[words.index(f"benchmarks.{learning_run.NAME}") + 1 :])
