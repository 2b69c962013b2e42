"""The whole chain on the CPU, with real compiles and runs."""

from __future__ import annotations

import json
import re

import pytest

from pkb_gym.training.inputs.rows import load_corpus, load_prompts
from pkb_gym.training.smoke import run_chain
from tests.docs.pages import DOCS
from tests.whole_tables import by_make_all


@by_make_all
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chain_from_export_to_evaluation(tmp_path):
    report = run_chain(tmp_path)
    assert report.faults == []
    assert len(report.grpo_losses) == 2
    submissions = [row for row in report.submissions if row["source"] is not None]  # other replies are kept too
    assert all(row["answer"] for row in submissions)
    assert len({row["source_hash"] for row in submissions}) > 1

    summary = json.loads((tmp_path / "grpo" / "held_out" / "summary.json").read_text())
    assert summary == report.summary.model_dump(mode="json")
    assert summary["total"]["prompts"] == 2 and summary["total"]["samples"] == 4

    trained_on = {(row["problem"], row["size"], row["dtype"]) for row in load_corpus(str(tmp_path / "data"))}
    held_out = load_prompts(str(tmp_path / "data"), "held_out")
    assert trained_on.isdisjoint({(row["problem"], row["size"], row["dtype"]) for row in held_out})
    archive = [json.loads(line) for line in (tmp_path / "grpo" / "archive.jsonl").read_text().splitlines()]
    assert {kernel["source"] for kernel in archive} <= {row["source"] for row in submissions if row["is_right"]}
    assert archive

    history = json.loads((tmp_path / "grpo" / "trainer_state.json").read_text())["log_history"]
    logged = {name for entry in history for name in entry}
    assert metrics_of_the_page(archive[0]["problem"]) <= logged


def metrics_of_the_page(problem: str) -> set[str]:
    """Names in the table of docs/training.md, for a problem that has right submissions."""
    table = (DOCS / "training.md").read_text(encoding="utf-8").split("| metric of `grpo.py`")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {name.replace("<problem>", problem) for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
