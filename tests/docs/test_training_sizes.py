"""The page's commands for models of 0.5 to 32 billion parameters fit the GPUs that it says, by the rehearsal."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from pkb_gym.training.rehearsal.launch import parse_launch
from pkb_gym.training.rehearsal.rehearse import rehearse
from pkb_gym.training.rehearsal.target import Target
from tests.docs.pages import DOCS, ROOT
from tests.training.scripted import row

PAGE = (DOCS / "training.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| ([\d.]+) \| (\S+) \| `(.*?)` \| `(.*?)` \| (\d) \| (\d+) \| (\d+) \| (\d+), ([\d.]+) \| (\d+) \|$", PAGE, re.M
)
A_MINUTE = 69
"""Evaluations of a node in a minute: the middle of what two H200 judged, as the page says."""
PROMPT_CHARS = 9000
"""Length of the prompts for which the page gives figures."""


def command(billions: str, accelerate: str, options: str, prompts: Path) -> str:
    file, *launch = accelerate.split()
    config, *more = options.split()
    visible = "CUDA_VISIBLE_DEVICES=0,1,2,3 " if "--evaluation_gpus" in more else ""
    return (
        f"{visible}accelerate launch --config_file training/configs/accelerate/{file}.yaml {' '.join(launch)} "
        f"training/grpo.py --config training/configs/{config}.yaml --prompts {prompts} "
        f"--model_name_or_path Qwen/Qwen2.5-Coder-{billions}B-Instruct {' '.join(more)}"
    )


def test_there_is_a_row_for_each_size_and_number_of_gpus():
    assert {(size, count) for size, count, *_ in ROWS} == {
        (size, count) for size in ("0.5", "7", "14", "32") for count in ("1", "8", "2x8")
    } - {("32", "1")}


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: f"{cells[0]}B on {cells[1]}")
def test_the_command_of_a_row_fits(cells, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pkb_gym.training.rehearsal.services.PATIENCE_S", 0.1)
    size, count, accelerate, options, ranks, learning, generation, evaluations, tokens, minutes = cells
    prompt = [{"role": "user", "content": "x" * PROMPT_CHARS}]
    rows = [row(seed=n, device="cuda", language="cuda", world_size=int(ranks), prompt=prompt) for n in range(32)]
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(tmp_path / "prompts")
    launch = parse_launch(shlex.split(command(size, accelerate, options, tmp_path)))
    found = list(rehearse(launch, Target.parse(f"{count}x80")))
    assert not [finding for finding in found if finding.level == "error"]
    texts = {finding.subject: finding.text for finding in found}
    assert all(finding.level == "ok" for finding in found if finding.subject == "ranks")
    assert f"{float(learning):.0f}" == f"{float(texts['memory, learning'].split()[0]):.0f}"
    assert f"{float(generation):.0f}" == f"{float(texts['memory, generation'].split()[0]):.0f}"
    assert f"at most {evaluations} evaluations and {tokens} million tokens" in texts["batch"]
    nodes = 2 if count == "2x8" and "--evaluation_url" not in options else 1
    assert int(minutes) == round(int(evaluations) / A_MINUTE / nodes)
