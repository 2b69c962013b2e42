"""The benchmark of the GPU evaluator: which parts run, and what a run that is cut off leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu_evaluator
from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS

ONE_GPU = ["--device", "cpu", "--world-size", "1"]


class Interrupted(Exception):
    """Somebody has ended the run."""


class Idle:
    """In place of an evaluator: nothing is judged."""

    def __init__(self, **_: object) -> None: ...

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None: ...

    def evaluate(self, *_: object) -> object:
        """Nothing."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that a run has begun."""
    parts: list[str] = []

    def repeatability(_: object, __: object, repeats: int, size: str | None) -> Iterator[list[dict[str, Any]]]:
        parts.append(f"repeatability {repeats} {size}")
        yield [{"timed": 1}]
        yield [{"timed": 2}]

    monkeypatch.setattr(gpu_evaluator.Benchmark, "latency", lambda *_: parts.append("latency"))
    monkeypatch.setattr(gpu_evaluator.Benchmark, "repeatability", repeatability)
    monkeypatch.setattr(gpu_evaluator, "LocalEvaluator", Idle)
    return parts


def result(folder: Path) -> dict[str, Any]:
    """The file that a run on one GPU leaves."""
    content: dict[str, Any] = json.loads((folder / "gpu_evaluator_1_ranks.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([], ["latency", "repeatability 20 None", "latency", "repeatability 6 None"]),
        (["--only", "repeatability_with_standby", "--size", "published"], ["repeatability 20 published"]),
        (["--only", "latency_without_standby"], ["latency"]),
    ],
)
def test_parts_are_chosen(only: list[str], expected: list[str], begun: list[str], tmp_path: Path) -> None:
    gpu_evaluator.main([*ONE_GPU, *only, "--out", str(tmp_path)])
    assert begun == expected
    assert result(tmp_path)["world_size"] == 1


def test_rounds_are_kept_one_by_one(begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: object) -> Iterator[list[dict[str, Any]]]:
        yield [{"timed": 1}]
        raise Interrupted

    monkeypatch.setattr(gpu_evaluator.Benchmark, "repeatability", cut_off)
    with pytest.raises(Interrupted):
        gpu_evaluator.main([*ONE_GPU, "--only", "repeatability_with_standby", "--out", str(tmp_path)])
    assert result(tmp_path)["repeatability_with_standby"] == [{"timed": 1}]
    assert begun == []


def test_first_evaluations_are_counted_apart():
    """They measure the overhead of blocks, which the others find in the evaluator's cache."""
    stages: list[str] = []

    class Noting(Idle):
        def evaluate(self, *request: Any) -> SimpleNamespace:
            stages.append(request[-1].until)
            return SimpleNamespace(durations_s={})

    found = gpu_evaluator.Benchmark("cpu", 1, "tiny").latency(Noting())
    assert list(found) == ["first", "check", "time", "profile"]
    assert stages == ["time"] * MEASUREMENTS + [stage for stage in ("check", "time", "profile") for _ in range(5)]
