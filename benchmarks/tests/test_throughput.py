"""Throughput: what is submitted, and what is kept of the answers."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import throughput
from pkb_gym.engine.records.feedback import Failure


class Answering:
    """An evaluator whose answers name a language by the text, and whose wrong candidates are those with "wrong"."""

    def __init__(self) -> None:
        self.lock, self.requests = threading.Lock(), list[tuple[str, str]]()

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def evaluate(self, _: object, text: str, config: Any) -> SimpleNamespace:
        with self.lock:
            self.requests.append((text, config.until))
        time.sleep(0.001)
        language = "python" if "import" in text else "cpp"
        wrong = "wrong" in text
        return SimpleNamespace(
            failure=Failure.OUTPUT_MISMATCH if wrong else None,
            timing=None if wrong else object(),
            config=SimpleNamespace(language=language),
            durations_s={"check": 0.25, "time": 0.5},
        )


def candidates(*texts: str) -> list[throughput.Candidate]:
    return [throughput.Candidate(throughput.find_problem("AllReduce"), text) for text in texts]


def test_a_stream_counts_verdicts_and_stages_by_language():
    config = SimpleNamespace(until="time")
    texts = itertools.cycle(candidates("import torch", "native", "wrong"))
    found = throughput.stream(Answering(), texts, config, callers=3, seconds=0.1)
    assert found["evaluations"] == sum(found["verdicts"].values()) > 3
    assert set(found["verdicts"]) == {"passed", "output_mismatch"}
    assert [(row["language"], row["check"], row["time"]) for row in found["stages_s"]] == [
        ("cpp", 0.25, 0.5),
        ("python", 0.25, 0.5),
    ]
    assert found["per_minute"] == pytest.approx(60 * found["evaluations"] / found["seconds"], rel=0.5)


def test_fresh_candidates_are_texts_that_were_never_seen():
    found = list(itertools.islice(throughput.fresh(candidates("one", "two")), 6))
    assert len({candidate.text for candidate in found}) == 6
    assert [candidate.text.split()[0] for candidate in found] == ["one", "two"] * 3


def test_sources_are_compiled_before_they_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    evaluator = Answering()
    monkeypatch.setattr(throughput, "LocalEvaluator", lambda: evaluator)
    words = ["throughput", "--problems", "AllReduce", "--seconds", "0.05", "--callers", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    throughput.main()
    content = json.loads((tmp_path / "throughput_cpu_2_ranks.json").read_text(encoding="utf-8"))
    assert content["one_by_one"]["evaluations"] == 2 and content["compiled"]["evaluations"] > 0
    assert [until for _, until in evaluator.requests[:3]] == ["compile", "compile", "time"]
    compiled = {text for text, until in evaluator.requests if until == "compile"}
    assert len(compiled) == 2
    assert sum(text not in compiled for text, _ in evaluator.requests) == content["fresh"]["evaluations"]
