"""Where a corpus and prompts are looked for: the folder of both formats, one of them, or a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.rows import load_corpus, load_prompts
from tests.training.conversations import prompt, tiny_corpus


def test_a_corpus_is_found_in_either_format(tmp_path: Path) -> None:
    corpus = tiny_corpus()
    corpus.to_json(tmp_path / "corpus.jsonl")
    kinds = list(corpus["kind"])
    assert list(load_corpus(str(tmp_path))["kind"]) == kinds
    corpus.save_to_disk(str(tmp_path / "corpus"))
    for place in (tmp_path, tmp_path / "corpus", tmp_path / "corpus.jsonl"):
        assert list(load_corpus(str(place))["kind"]) == kinds


def test_prompts_are_found_where_there_are_lines_alone(tmp_path: Path) -> None:
    row = {"problem": "AllReduce", "language": "cpp", "device": "cpu", "world_size": 2, "size": "tiny"}
    row |= {"dtype": "float32", "seed": 0, "style": "brief", "prompt": prompt("AllReduce")}
    lines = [json.dumps(row | {"part": part}) for part in ("train", "held_out", "held_out")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    assert (len(load_prompts(str(tmp_path), "train")), len(load_prompts(str(tmp_path), "held_out"))) == (1, 2)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected the folder `corpus` or the file `corpus\.jsonl`"):
        load_corpus(str(tmp_path))
