"""Figures of a learning run, against numbers computed by hand."""

from __future__ import annotations

import io
import json
import tarfile
from math import sqrt
from pathlib import Path

import pytest

from benchmarks.learning_feedback import second_turn
from benchmarks.learning_run_report import figures, first_verdicts, main, phases_by_part, verdicts_by_step
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.training.results.policy_summary import prompt_key
from pkb_gym.training.results.ring_summary import summarise_rings
from tests.training.results.test_policy_summary import row


def turn(problem: str, sample: int, number: int, failure: str | None, reward: float | None = 0.0) -> dict:
    """A submission; `failure` None is a right one."""
    speedup = 2.0 if failure is None else None
    stage = {"compile_error": "static", "output_mismatch": "run", None: "time"}.get(failure)
    submission = {"failure": failure, "stage": stage, "source_hash": f"{problem} {sample} {failure}"}
    return {**row(problem, 0, sample, reward, speedup, turn=number), **submission}


ROWS = [
    turn("A", 0, 1, None),
    turn("A", 0, 0, "compile_error"),  # out of order, as a file may be
    turn("A", 1, 0, "output_mismatch"),
    turn("A", 1, 1, "output_mismatch"),
    turn("B", 0, 0, None),
    turn("B", 1, 0, "no_submission"),
    turn("C", 0, 0, "compile_error"),
    turn("C", 0, 1, "compile_error"),
    turn("C", 1, 0, "compile_error"),
    turn("C", 1, 1, None, reward=None),  # the evaluator failed
]


def test_the_second_turn_by_hand():
    found = second_turn(ROWS)
    assert (found.episodes, found.failed_first, found.answered, found.repeated) == (5, 4, 3, 2)
    # Repaired: 1 of 2 of A, 0 of 1 of B, which did not submit again, 0 of 1 of C. Residuals: 1 - 2/4, 0 - 1/4, 0 - 1/4.
    assert found.repaired.mean == pytest.approx(1 / 4) and found.repaired.clusters == 3
    assert found.repaired.standard_error == pytest.approx(sqrt(3 / 2 * (0.5**2 + 2 * 0.25**2)) / 4)
    assert found.gain.mean == pytest.approx((0.5 + 0 + 0) / 3)  # of A, B and C


def test_verdicts_of_first_turns_and_of_steps_are_counted():
    rings = {prompt_key(one): "test" if one["problem"] == "C" else "sizes" for one in ROWS}
    assert first_verdicts(ROWS, rings) == {
        "sizes": {"compile_error": 1, "output_mismatch": 1, "passed": 1, "no_submission": 1},
        "test": {"compile_error": 2},
    }
    steps = [{"step": step, "failure": failure} for step, failure in ((2, None), (0, "race"), (2, "race"), (2, None))]
    assert verdicts_by_step(steps) == [{"race": 1}, {}, {"passed": 2, "race": 1}]


def test_the_share_compiled_is_of_what_came_beyond_the_compiler():
    (ring,) = summarise_rings(ROWS[:6], {prompt_key(one): "sizes" for one in ROWS}).values()
    assert [of_turn.compiled.mean for of_turn in ring.turns] == [(0.5 + 0.5) / 2, (1.0 + 0.5) / 2]


def test_phases_are_shown_in_the_course_of_the_training():
    more = {"stages_s": {}, "evaluations": 2, "gpu_utilisations": []}
    waits = [{"wall_s": 10.0, "phases_s": {"evaluation": seconds}, **more} for seconds in (8.0, 4.0, 0.0)]
    found = phases_by_part(waits, parts=2)
    assert [(part["steps"], part["share"]["evaluation"]) for part in found] == [(2, 0.6), (1, 0.0)]
    assert [part["evaluations_per_minute"] for part in found] == [12.0, 12.0]
    assert [part["steps"] for part in phases_by_part(waits[:1], parts=4)] == [1]


def write_archive(path: Path, files: dict[str, dict]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            text = (json.dumps(content) + "\n").encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


def attempt(source: str | None = None) -> dict:
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    return Attempt(problem="A", requested=config, source=source, reward=0.0).model_dump(mode="json")


def test_the_pretrained_model_may_be_judged_by_another_run_and_kernels_are_compared_with_the_corpus(tmp_path: Path):
    about = {"date": "2026-01-02", "machine": "M", "commit": "b" * 12}
    write_archive(tmp_path / "base.tar.gz", {"about.json": about, "rings_base/results.jsonl": attempt()})
    write_archive(
        tmp_path / "run.tar.gz",
        {"about.json": {"commit": "c" * 12}, "rings_sft/results.jsonl": attempt("int x = 1;")},
    )
    (tmp_path / "prompts.jsonl").write_text(json.dumps({**row("A", 0, 0, 0.0), "ring": "sizes"}) + "\n")
    call = {"function": {"arguments": {"source": "int y = 1;"}}}
    shown = {"problem": "A", "failure": None, "messages": [{"tool_calls": [call]}]}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(shown) + "\n")
    more = ["--pretrained", str(tmp_path / "base.tar.gz"), "--corpus", str(tmp_path / "corpus.jsonl")]
    argv = ["--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path), *more]
    main([str(tmp_path / "run.tar.gz"), *argv])
    found = json.loads((tmp_path / "learning_run.json").read_bytes())
    assert list(found["policies"]) == ["base", "sft"] and "sft over base" in found["gains"]
    assert found["pretrained"] == about and found["commit"] == "c" * 12
    assert found["nearest"]["sft"]["sizes"]["1 to 10"] == {"submissions": 1, "right": 0}
    with pytest.raises(ConfigError, match="has judged the pretrained model itself"):
        main([str(tmp_path / "base.tar.gz"), *argv])


def test_what_was_broken_off_is_read_as_far_as_it_came(tmp_path: Path):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    attempts = [Attempt(problem="A", sample=sample, requested=config, reward=0.0) for sample in (0, 1)]
    part = {"prompt": 0, "sample": 0, "attempts": [one.model_dump(mode="json") for one in attempts]}
    state = {"global_step": 1, "log_history": [{"loss": 2.0, "mean_token_accuracy": 0.5, "epoch": 0.25}]}
    files = {
        "about.json": {"commit": "c" * 12},
        "rings_sft/parts/0.jsonl": part,
        "rings_grpo/results.jsonl": attempts[0].model_dump(mode="json"),
        "sft/trainer_state.json": state,
        "grpo/trainer_state.json": {"global_step": 1, "log_history": [{"reward": 0.5, "correct": 0.25}]},
        "grpo/rollouts.jsonl": {**turn("A", 0, 0, "race"), "step": 0, "is_duplicate": False},
        "grpo/phases.jsonl": {
            "step": 0,
            "wall_s": 10.0,
            "phases_s": {"generation": 4.0},
            "stages_s": {"compile": 3.0},
            "evaluations": 5,
            "evaluations_per_minute": 30.0,
            "gpu_utilisations": [],
        },
    }
    write_archive(tmp_path / "run.tar.gz", files)
    prompt = {**row("A", 0, 0, 0.0), "ring": "sizes"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(prompt) + "\n")
    main([str(tmp_path / "run.tar.gz"), "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path)])
    found = json.loads((tmp_path / "learning_run.json").read_bytes())
    assert found["commit"] == "c" * 12 and found["prompts"] == {"sizes": 1}
    assert list(found["policies"]) == ["sft", "grpo"]
    assert found["policies"]["sft"]["sizes"]["figures"]["samples"] == 2
    assert found["verdicts"]["grpo"] == {"sizes": {"no_submission": 1}}
    assert found["gains"]["grpo over sft"]["sizes"]["reward"]["mean"] == 0.0
    assert found["sft"]["loss"] == [2.0] and found["sft"]["epochs"] == 0.2
    assert found["grpo"]["curves"]["correct"] == [0.25] and found["grpo"]["evaluations"] == 1
    assert found["grpo"]["phases"]["evaluations_per_minute"] == 30.0
    assert [arm["arm"] for arm in found["study"]] == ["grpo", "sft"]


def test_a_run_without_results_of_sft_has_figures_of_the_rest(tmp_path: Path):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    (tmp_path / "rings_grpo").mkdir()
    (tmp_path / "grpo").mkdir()
    (tmp_path / "rings_grpo" / "results.jsonl").write_text(
        Attempt(problem="A", requested=config, reward=0.0).to_line() + "\n"
    )
    (tmp_path / "about.json").write_text("{}")
    (tmp_path / "grpo" / "rollouts.jsonl").write_text("")
    prompts = [{**row("A", 0, 0, 0.0), "ring": "sizes"}]
    found = figures(tmp_path, prompts)
    assert list(found["policies"]) == ["grpo"] and found["gains"] == {} and found["grpo"] is None
    step = {"step": 0, "wall_s": 1.0, "phases_s": {}, "stages_s": {}, "evaluations": 0, "gpu_utilisations": []}
    (tmp_path / "grpo" / "phases.jsonl").write_text(json.dumps(step) + "\n")
    assert [arm["arm"] for arm in figures(tmp_path, prompts)["study"]] == ["grpo"]


def test_a_seed_with_sft_and_samples_of_its_own_is_compared_with_these(tmp_path: Path):
    config = EvalConfig(size="tiny", language="cpp", dtype="bfloat16", world_size=2)
    step = {"step": 0, "wall_s": 1.0, "phases_s": {}, "stages_s": {}, "evaluations": 0, "gpu_utilisations": []}

    def write(name: str, seed: int, rewards: dict[str, float]) -> str:
        results = {
            f"{stage}/results.jsonl": Attempt(problem="A", requested=config, reward=reward).model_dump(mode="json")
            for stage, reward in rewards.items()
        }
        training = {"grpo/rollouts.jsonl": {**turn("A", 0, 0, "race"), "step": 0, "is_duplicate": False}}
        files = {"about.json": {"seed": seed}, "grpo/phases.jsonl": step, **training, **results}
        write_archive(tmp_path / name, files)
        return str(tmp_path / name)

    first = write("0.tar.gz", 0, {"rings_sft": 0.25, "rings_grpo": 1.0, "samples": 0.5})
    shares = write("1.tar.gz", 1, {"rings_grpo": 1.0})
    alone = write("2.tar.gz", 2, {"rings_sft": 0.75, "rings_grpo": 1.0, "samples": 0.875})
    unsampled = write("3.tar.gz", 3, {"rings_sft": 0.75, "rings_grpo": 1.0})
    (tmp_path / "prompts.jsonl").write_text(json.dumps({**row("A", 0, 0, 0.0), "ring": "sizes"}) + "\n")
    main([first, shares, alone, unsampled, "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path)])
    found = json.loads((tmp_path / "learning_run.json").read_bytes())
    gains = [seed["gains"]["grpo over sft"]["sizes"]["reward"]["mean"] for seed in found["seeds"]]
    assert gains == [0.75, 0.75, 0.25, 0.25]
    best_of_n = [arm for seed in found["seeds"] for arm in seed["study"] if arm["arm"] == "best of n"]
    assert [arm["reward"]["mean"] for arm in best_of_n] == [0.5, 0.5, 0.875]
    assert found["joined"]["policies"]["sft"]["sizes"]["reward"]["mean"] == (0.25 + 0.75 + 0.75) / 3
