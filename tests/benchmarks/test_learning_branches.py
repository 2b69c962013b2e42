"""Arms of a learning run: other options of GRPO from the same SFT, and controls in a lane of their own."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from benchmarks import learning_branches, learning_run
from benchmarks.learning_run import Run
from benchmarks.learning_stages import Stage
from pkb_gym.training.inputs.option_names import check_options, option_names
from tests.benchmarks.test_learning_run import command_line, stages_of_two_lanes

TWO_TURNS = ["--arm", "two_turns", "grpo-turns=2", "grpo-completion=640"]


@pytest.fixture
def finished_sft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose SFT and GRPO are finished."""
    monkeypatch.setattr(Run, "prompts_of", lambda *_: 5)
    runs = tmp_path / "runs"
    for name in ("model", "sft"):
        (runs / name).mkdir(parents=True)
    for name in ("model", "sft", "grpo"):
        (runs / f"{name}.finished").touch()
    return runs


def value(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_an_arm_has_its_options_and_a_folder_and_the_first_seeds_sft(
    tmp_path: Path, finished_sft: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: dict[str | None, tuple[dict[str, list[str]], list[str]]] = {}

    def go_on(run: Run, _: object = None) -> None:
        run.folder.mkdir(exist_ok=True)
        seen[run.args.arm] = ({stage.name: list(stage.arguments) for stage in run.stages()}, run.args.skip)

    monkeypatch.setattr(Run, "go_on", go_on)
    more = ["--seed", "4", "--grpo-turns", "1", "--skip", "two_turns:rft", "4:verdict_sft"]
    learning_run.main(command_line(tmp_path, *TWO_TURNS, *more))
    first, arm = seen[None][0], seen["two_turns"][0]
    assert [value(of["grpo"], "--max_turns") for of in (first, arm)] == ["1", "2"]
    assert [value(of["grpo"], "--max_completion_length") for of in (first, arm)] == ["2560", "640"]
    assert value(arm["rings_grpo"], "--max_completion_length") == "2560", "policies are judged alike"
    assert value(arm["grpo"], "--seed") == "4"
    assert value(arm["grpo"], "--output_dir") == str(finished_sft / "arm-two_turns" / "grpo")
    assert (finished_sft / "arm-two_turns" / "sft").resolve() == finished_sft / "sft"
    assert seen[None][1] == ["verdict_sft"] and seen["two_turns"][1] == ["rft", *learning_branches.COMMON]
    with tarfile.open(tmp_path / "out" / "run.tar.gz") as archive:
        assert not [name for name in archive.getnames() if "two_turns" in name]
    with tarfile.open(tmp_path / "out" / "arm-two_turns" / "run.tar.gz") as archive:
        about = json.load(archive.extractfile("about.json"))  # type: ignore[arg-type]
    assert about["arm"] == "two_turns" and about["seed"] == 4 and about["options"]["grpo-turns"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arm", "a", "sft-steps=3"], "with one of grpo-turns,"),
        (["--arm", "a", "grpo-turns"], "got 'grpo-turns'"),
        (["--arm", "../a"], "letters, digits and '_', got '../a'"),
        (["--arm", "a", "--arm", "a", "group=4"], "names of their own; there are a, a"),
        (["--controls-apart"], "give --side-by-side too"),
    ],
)
def test_arms_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    with pytest.raises(SystemExit):
        learning_run.main(command_line(tmp_path, *words))
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_practice_is_over_with_its_submissions(tmp_path: Path, finished_sft: Path, monkeypatch: pytest.MonkeyPatch):
    """Two of three lines are submissions."""
    over: list[bool] = []

    def go_on(run: Run, _: object = None) -> None:
        grpo = next(stage for stage in run.stages() if stage.name == "grpo")
        limit = list(grpo.arguments)[list(grpo.arguments).index("--max_submissions") + 1]
        assert limit == str(run.args.grpo_submissions)
        folder = run.folder / "grpo"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").touch()
        (folder / "trainer_state.json").write_text('{"global_step": 1, "max_steps": 9}')
        lines = [{"failure": failure, "is_duplicate": False} for failure in (None, "race", "no_submission")]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.spent["grpo"] = 1.0
        over.append(run._is_over(grpo, 0))

    monkeypatch.setattr(Run, "go_on", go_on)
    for limit in (2, 3):
        learning_run.main(command_line(tmp_path, "--grpo-submissions", str(limit)))
    assert over == [True, False]


def test_evaluations_may_have_gpus_and_compilers_of_their_own(
    tmp_path: Path, finished_sft: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Stage] = []
    monkeypatch.setattr(Run, "prompts_of", lambda _, *rings: 24 * len(rings))
    monkeypatch.setattr(Run, "go_on", lambda run, _=None: seen.extend(run.stages()))
    more = ["--evaluation-compilers", "6", "--evaluation-deadline-s", "500"]
    learning_run.main(command_line(tmp_path, "--evaluation-gpus", "2", "3", *more))
    stages = {stage.name: list(stage.arguments) for stage in seen}
    assert "evolve" not in stages
    for name in ("grpo", "rings_sft", "samples"):
        at = stages[name].index("--evaluation_gpus")
        assert stages[name][at + 1 : at + 3] == ["2", "3"] and "--evaluation_services" not in stages[name]
        assert value(stages[name], "--evaluation_compilers") == "6"
        assert value(stages[name], "--evaluation_deadline_s") == "500"
        recipe = Path(learning_run.__file__).parent.parent / "training" / f"{stages[name][0].rpartition('.')[2]}.py"
        check_options(stages[name][1:], option_names(recipe), recipe.stem)
    assert [value(stages[name], "--limit") for name in ("samples", "verdict_sft")] == ["24", "48"]


def test_controls_go_on_beside_practice_in_a_lane_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the first seed, GRPO and the controls wait for each other; their times come into one file."""
    stages_of_two_lanes(tmp_path, monkeypatch)
    runs = tmp_path / "runs"
    works = [Stage(name, ["stage_that_works", str(runs / name)], 60, made="made") for name in ("model", "sft")]
    meets = [
        Stage(name, ["stage_that_sleeps", str(runs / name), str(runs / other / "begun")], 60, made="made")
        for name, other in (("rft", "rings_sft"), ("rings_sft", "rft"))
    ]
    monkeypatch.setattr(Run, "stages", lambda _: [*works, *meets])
    learning_run.main(command_line(tmp_path, "--side-by-side", "--controls-apart"))
    found = {name: json.loads((runs / name / "made").read_text()) for name in ("rft", "rings_sft")}
    assert all(one["met"] for one in found.values())
    assert [found[name]["gpu"] for name in ("rft", "rings_sft")] == ["6", "3"]
    assert not set(found["rft"]["processors"]) & set(found["rings_sft"]["processors"])
    assert set(json.loads((runs / "spent.json").read_text())) == {"model", "sft", "rft", "rings_sft"}
    with tarfile.open(tmp_path / "out" / "run.tar.gz") as archive:
        assert "spent.json" in archive.getnames()
