"""`pkb export`: rows as the trainers expect them, resumed, without repetition, and honest about what was not run."""

from __future__ import annotations

import json

import pytest
from datasets import load_from_disk

from pkb_gym.corpus import lessons
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.envs.text.brief import brief_feedback
from pkb_gym.rewards import find_reward
from tests.corpus.conftest import TextEvaluator

PROMPT_COLUMNS = {"problem", "language", "device", "world_size", "size", "dtype", "seed", "style", "prompt"}
CORPUS_COLUMNS = (PROMPT_COLUMNS - {"prompt"}) | {
    "id",
    "kind",
    "messages",
    "variant",
    "breakage",
    "stage",
    "failure",
    "rewards",
    "reward",
    "speedup",
    "feedback",
    "source_hash",
    "prompt_chars",
    "source_chars",
}


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _manifest(out):
    return json.loads((out / "manifest.json").read_text())


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_are_written_for_datasets_and_as_lines(export, out):
    options = ("--problems", "AllReduce", "TPRMSNorm", "--world-size", 2, "--style", "brief", "--seeds", 2)
    assert export("prompts", "--out", out, "--variations", 1, *options).status == 0
    sets = load_from_disk(str(out / "prompts"))
    assert set(sets) == {"train", "held_out"}
    assert set(sets["train"].column_names) == PROMPT_COLUMNS
    assert len(sets["train"]) == 2 * 2 * 2 and len(sets["held_out"]) == 2 * 2
    assert [message["role"] for message in sets["train"][0]["prompt"]] == ["system", "user"]
    lines = _lines(out / "prompts.jsonl")
    assert [line["part"] for line in lines] == ["train"] * 8 + ["held_out"] * 4
    assert {(r["size"], r["dtype"]) for r in sets["train"]}.isdisjoint(
        {(r["size"], r["dtype"]) for r in sets["held_out"] if r["problem"] == "AllReduce"}
    )
    assert _manifest(out)["prompts"]["rows"] == {"train": 8, "held_out": 4}


def test_test_problems_are_held_out_where_they_are_asked_for(export, out):
    options = ("--problems", "AllReduce", "--world-size", 2, "--style", "brief", "--held-out", 0)
    assert export("prompts", "--out", out, "--test-problems", *options).status == 0
    sets = load_from_disk(str(out / "prompts"))
    assert set(sets["train"]["problem"]) == {"AllReduce"}
    assert "Broadcast" in set(sets["held_out"]["problem"]) and "AllReduce" not in set(sets["held_out"]["problem"])


@pytest.mark.parametrize("kind", ["prompts", "corpus"])
def test_the_test_part_is_refused(export, out, kind):
    ran = export(kind, "--out", out, "--problems", "ReduceScatter", "--world-size", 2)
    assert ran.status == 2
    assert "ReduceScatter belongs to the test part of the split" in ran.err
    assert not ran.evaluator.requested and not (out / "corpus").exists()


def test_a_problem_without_family_is_refused(export, out):
    ran = export("corpus", "--out", out, "--problems", "FSDPStep", "--world-size", 2)
    assert ran.status == 2 and "no family of cpp kernels for 'FSDPStep'" in ran.err


# ---- corpus ---------------------------------------------------------------------------------------------------------


def test_rows_are_conversations_that_end_in_a_right_kernel(export, out, small):
    ran = export("corpus", "--out", out, *small)
    assert ran.status == 0, ran.err
    rows = load_from_disk(str(out / "corpus"))
    assert set(rows.column_names) == CORPUS_COLUMNS
    assert len(rows) == len(_lines(out / "corpus.jsonl"))
    assert len({row["id"] for row in rows}) == len(rows)
    assert {row["kind"] for row in rows} == {"single", "repair"}
    reward = find_reward("default")
    for row in rows:
        feedbacks = [Feedback.model_validate_json(text) for text in row["feedback"]]
        assert row["rewards"] == [reward(feedback) for feedback in feedbacks] and row["reward"] == row["rewards"][-1]
        assert feedbacks[-1].passed and row["speedup"] == feedbacks[-1].speedup
        assert all(feedback.failure is not None for feedback in feedbacks[:-1])
        assert (row["kind"] == "repair") == (row["breakage"] is not None) == (len(feedbacks) > 1)
        system, user, *turns, closing = row["messages"]
        assert (system["role"], user["role"], closing["role"]) == ("system", "user", "assistant")
        assert [turn["role"] for turn in turns] == ["assistant", "tool"] * len(feedbacks)
        for k, feedback in enumerate(feedbacks):
            call, answer = turns[2 * k], turns[2 * k + 1]
            source = call["tool_calls"][0]["function"]["arguments"]["source"]
            assert call["tool_calls"][0]["function"]["name"] == answer["name"] == "submit"
            assert answer["content"] == brief_feedback(feedback, row["rewards"][k])
        assert row["source_chars"] == len(source) and "speedup" not in user["content"]


def test_prompts_of_both_exports_are_the_same_text(export, out, small):
    export("corpus", "--out", out, *small)
    export("prompts", "--out", out, "--problems", "AllGather", "--world-size", 2, "--style", "brief")
    prompt = load_from_disk(str(out / "prompts"))["train"][0]["prompt"]
    row = next(row for row in load_from_disk(str(out / "corpus")) if row["problem"] == "AllGather")
    assert [(m["role"], m["content"]) for m in row["messages"][:2]] == [(m["role"], m["content"]) for m in prompt]
    assert set(_manifest(out)) == {"corpus", "prompts"}


def test_the_same_command_again_evaluates_nothing_and_writes_the_same(export, out, small):
    first = export("corpus", "--out", out, *small)
    before = (out / "corpus.jsonl").read_text()
    again = export("corpus", "--out", out, *small)
    assert len(first.evaluator.requested) == len({(name, source) for name, source, _ in first.evaluator.requested}) > 12
    assert not again.evaluator.requested
    assert (out / "corpus.jsonl").read_text() == before


def test_an_interrupted_export_goes_on_where_it_was(export, out, small):
    stopped = export("corpus", "--out", out, *small, evaluator=TextEvaluator(interrupts_at=7))
    assert stopped.status == 130 and not (out / "corpus").exists()
    kept = len(_lines(out / "evaluations.jsonl"))
    assert 5 <= kept <= 8
    with (out / "evaluations.jsonl").open("a") as journal:
        journal.write('{"key": "torn')
    again = export("corpus", "--out", out, *small)
    whole = export("corpus", "--out", out.parent / "whole", *small)
    assert len(again.evaluator.requested) == len(whole.evaluator.requested) - kept
    assert (out / "corpus.jsonl").read_text() == (out.parent / "whole" / "corpus.jsonl").read_text()


def test_faults_of_this_machine_are_tried_again(export, out, small):
    ran = export("corpus", "--out", out, *small, evaluator=TextEvaluator(fails_at=2))
    assert ran.status == 3 and _manifest(out)["corpus"]["faults_of_this_machine"] == 1
    assert "the same command repeats them" in ran.err
    again = export("corpus", "--out", out, *small)
    assert again.status == 0 and _manifest(out)["corpus"]["faults_of_this_machine"] == 0


def test_what_did_no_harm_is_left_out_and_counted(export, out, small):
    export("corpus", "--out", out, *small)
    left_out = _manifest(out)["corpus"]["left_out"]
    assert sum(left_out["breakages_that_did_no_harm"].values()) > 0
    kept = {row["breakage"] for row in _lines(out / "corpus.jsonl")} - {None}
    assert not kept & set(left_out["breakages_that_did_no_harm"])


def test_kernels_that_were_not_run_are_no_targets(export, out, small):
    ran = export("corpus", "--out", out, *small, evaluator=TextEvaluator(only_compiles=True))
    assert "nothing was run" in ran.err and ran.status == 3
    assert not _lines(out / "corpus.jsonl")
    ran = export("corpus", "--out", out, *small, "--compile-only", evaluator=TextEvaluator(only_compiles=True))
    rows = _lines(out / "corpus.jsonl")
    assert ran.status == 0 and rows and all(row["stage"] == "compile" and row["speedup"] is None for row in rows)
    assert rows[0]["messages"][-1]["content"] == "The kernel compiles."


def test_time_ends_and_the_rest_is_left(export, out, small):
    ran = export("corpus", "--out", out, *small, "--max-minutes", 1e-9)
    assert not ran.evaluator.requested and "12 evaluations are left; the same command continues" in ran.err


def test_variants_take_workloads_in_turn(export, out):
    options = ("--problems", "AllGather", "--world-size", 2, "--style", "brief", "--repairs-per-problem", 0)
    export("corpus", "--out", out, *options, "--variants-per-problem", 6, "--variations", 2)
    sizes = [(row["size"], row["dtype"]) for row in _lines(out / "corpus.jsonl")]
    assert len(set(sizes)) == 3 and sizes[:3] == sizes[3:]


def test_another_writer_is_refused(export, out, small):
    from pkb_gym.corpus.journal import FeedbackJournal

    with FeedbackJournal(out / "evaluations.jsonl"):
        ran = export("corpus", "--out", out, *small)
    assert ran.status == 2 and "is being written by another `pkb export`" in ran.err


def test_counts_are_tables(export, out, small, capsys):
    export("corpus", "--out", out, *small)
    from pkb_gym.cli import main

    assert main(["export", "counts", str(out), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert "| AllGather | cpp | 6 | " in text and "| output_mismatch | run | " in text and "| 500 to 999 | " in text
    assert main(["export", "counts", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"]["kinds"]["single"] == 12
    assert main(["export", "counts", str(out.parent / "nothing")]) == 2


def test_end_to_end_with_real_evaluations(out, local_evaluator, monkeypatch, capsys):
    """Two problems, every submission compiled, run, checked and timed."""
    from pkb_gym.cli import main

    monkeypatch.setattr(local_evaluator, "close", lambda: None)
    options = ["--problems", "AllGather", "Scatter", "--world-size", "2", "--style", "full", "--timing-budget", "0.05"]
    counts = ["--variants-per-problem", "1", "--repairs-per-problem", "1", "--jobs", "2"]
    assert main(["export", "corpus", "--out", str(out), *options, *counts], lambda _key: local_evaluator) == 0
    rows = _lines(out / "corpus.jsonl")
    assert len([row for row in rows if row["kind"] == "single"]) == 2
    for row in rows:
        assert row["stage"] == "time" and row["speedup"] > 0 and row["reward"] > 0.7
        assert "Turn 1" in row["messages"][3]["content"] and "## Machine" in row["messages"][1]["content"]


# ---- lessons --------------------------------------------------------------------------------------------------------


def test_lessons_are_exported_beside_a_corpus(export, out):
    ran = export("lessons", "--out", out, "--problems", "AllReduce", "ZeRO1", "--style", "brief")
    assert ran.status == 0 and "lessons of 2 problems" in ran.err
    rows = load_from_disk(str(out / "lessons"))
    assert set(rows["problem"]) == {"AllReduce", "ZeRO1"} and set(rows["kind"]) == {"lesson"}
    assert len(rows) == len(_lines(out / "lessons.jsonl")) == _manifest(out)["lessons"]["rows"]
    assert "lessons" in (out / "README.md").read_text()


def test_lessons_need_an_expert_of_the_training_part(export, out, monkeypatch):
    monkeypatch.setattr(lessons, "expert_source", lambda problem, suffix: None)
    ran = export("lessons", "--out", out, "--problems", "ZeRO1")
    assert ran.status == 2 and "none of ZeRO1 has a CUDA expert" in ran.err
    ran = export("lessons", "--out", out, "--problems", "ClipGradNorm")
    assert ran.status == 2 and "belongs to the test part" in ran.err
    assert not out.exists()
