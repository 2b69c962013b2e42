"""`datasets.load_dataset` finds prompts, corpus and results in an exported folder."""

from __future__ import annotations

import json

from datasets import load_dataset

from pkb_gym.corpus.cards import COLUMNS
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from tests.corpus.test_export import _lines
from tests.envs.fake_evaluator import FakeEvaluator

CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny")
OPTIONS = ("--problems", "AllReduce", "--world-size", 2, "--style", "brief")


def load(out, name, tmp_path):
    return load_dataset(str(out), name, cache_dir=str(tmp_path / "cache"))


def attempts(*sources):
    problem, evaluator = find_problem("AllReduce"), FakeEvaluator()
    return [
        Attempt(
            problem="AllReduce",
            agent="somebody",
            turn=turn,
            requested=CONFIG,
            source=source,
            reward=0.5,
            reward_name="default",
            feedback=evaluator.evaluate(problem, source, CONFIG),
        )
        for turn, source in enumerate(sources)
    ]


def write_results(path, found):
    with AttemptFile(path, writer="pkb run", option="--output") as file:
        for attempt in found:
            file.append(attempt)
    return path


def test_prompts_and_corpus_load_as_they_were_written(export, out, tmp_path):
    assert export("prompts", "--out", out, *OPTIONS).status == 0
    corpus = ("--problems", "AllReduce", "--world-size", 2, "--variants-per-problem", 8, "--repairs-per-problem", 2)
    assert export("corpus", "--out", out, *corpus).status == 0
    prompts = load(out, "prompts", tmp_path)
    assert set(prompts) == {"train", "held_out"}
    written = [{name: row[name] for name in COLUMNS["prompts"]} for row in _lines(out / "prompts.jsonl")]
    assert [row for part in ("train", "held_out") for row in prompts[part]] == written
    assert set(prompts["train"].column_names) == set(COLUMNS["prompts"])
    conversations = load(out, "corpus", tmp_path)["train"]
    assert set(conversations.column_names) == set(COLUMNS["corpus"])
    assert [row["id"] for row in conversations] == [row["id"] for row in _lines(out / "corpus.jsonl")]
    assert conversations[0]["messages"][0]["role"] == "system"
    card = (out / "README.md").read_text()
    assert "## prompts" in card and "## corpus" in card and f"| train | {len(conversations)} |" in card


def test_results_load(export, out, tmp_path):
    found = attempts("speedup 2", "deadlock", "\ud800")
    first, second = (
        write_results(tmp_path / f"{name}.jsonl", part) for name, part in (("first", found[:1]), ("second", found[1:]))
    )
    assert export("results", first, second, "--out", out).status == 0
    rows = load(out, "results", tmp_path)["train"]
    assert list(rows.column_names) == list(COLUMNS["results"])
    assert rows["verdict"] == ["passed", "deadlock", "rejected"]
    assert rows["speedup_low"] == [2.0, None, None] and rows["source"] == ["speedup 2", "deadlock", "\\ud800"]
    assert rows[0]["size"] == "tiny" and rows[0]["agent"] == "somebody" and rows[0]["reward"] == 0.5
    assert [Attempt.from_line(record) for record in rows["record"]] == found
    assert json.loads((out / "manifest.json").read_text())["results"]["rows"] == 3


def test_a_readme_of_somebody_is_left_alone(export, out, tmp_path):
    out.mkdir()
    (out / "README.md").write_text("# My notes\n")
    results = write_results(tmp_path / "results.jsonl", attempts("speedup 2"))
    ran = export("results", results, "--out", out)
    assert ran.status == 2 and "is no card of pkb export; --out names another folder" in " ".join(ran.err.split())
    assert (out / "README.md").read_text() == "# My notes\n"


def test_no_results_are_no_data_set(export, out, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    ran = export("results", tmp_path / "empty.jsonl", "--out", out)
    assert ran.status == 2 and "no results in" in ran.err and not out.exists()
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert export("results", tmp_path / "other.jsonl", "--out", out).status == 2
