"""Mutants on emulated GPUs: rounds of seeds, reachability before further seeds, and where a later run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import emulated_mutants
from benchmarks.emulated_mutants import Judged, Order, Row, judge_order, main
from benchmarks.equivalent_mutants import AT_TINY
from benchmarks.synchronisation import InlinedSource
from benchmarks.weakened_operations import weakened
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

FOUND_WITH = {"at once": 0, "late": 6, "never": None, "not reached": None}
"""Name of a mutant -> the seed that finds it."""


class FakeEvaluator:
    """Refuses a mutant with its seed; notes all evaluations."""

    def __init__(self) -> None:
        self.requested: list[tuple[str, int]] = []

    def evaluate(self, problem: object, source: str, config: EvalConfig) -> SimpleNamespace:
        self.requested.append((source, config.seed))
        if source.endswith("trap"):
            return SimpleNamespace(failure=None, passed=source.startswith("not reached"), message="")
        refused = FOUND_WITH[source] == config.seed
        message = "race on 2 bytes (kernel.cu:7, block 0), then (kernel.cu:9, block 1)" if refused else ""
        return SimpleNamespace(failure="race" if refused else None, passed=not refused, message=message)


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> FakeEvaluator:
    fake = FakeEvaluator()

    def sharded(work: Callable[[Any, Order], Row], tasks: Sequence[Order], **_: object) -> Iterator[tuple[Order, Row]]:
        yield from ((task, work(fake, task)) for task in tasks)

    mutants = [
        Judged(name, Row("Gather", "no wait", name, 7), f"{name} trap").with_digest() for name in sorted(FOUND_WITH)
    ]
    monkeypatch.setattr(emulated_mutants, "sharded", sharded)
    monkeypatch.setattr(emulated_mutants, "sampled", lambda _args, _problems: list(mutants))
    return fake


def run(folder: Path, *options: str) -> int:
    return main(["--problems", "Gather", "--seeds", "8", "--jobs", "1", "--out", str(folder), *options])


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    result = json.loads((folder / "emulated_mutants.json").read_text(encoding="utf-8"))
    return {row["mutant"]: row for row in result["rows"]}


def test_every_mutant_has_its_first_seed_before_any_has_more(evaluator: FakeEvaluator, tmp_path: Path) -> None:
    assert run(tmp_path) == 1, "one is never found"
    firsts = [source for source, _ in evaluator.requested[:7] if not source.endswith("trap")]
    assert firsts == ["at once", "late", "never", "not reached"]
    assert [seed for source, seed in evaluator.requested if source == "late"] == list(range(7))
    assert [seed for source, seed in evaluator.requested if source == "never"] == list(range(8))
    assert [seed for source, seed in evaluator.requested if source == "not reached"] == [0]
    found = rows(tmp_path)
    assert (found["late"]["seed"], found["late"]["evaluations"], found["late"]["places"]) == (
        *(6, 7),
        ["kernel.cu:7", "kernel.cu:9"],
    )
    assert found["late"]["names_line"] and found["not reached"]["reached"] is False


def test_a_later_run_goes_on_where_the_earlier_one_ended(evaluator: FakeEvaluator, tmp_path: Path) -> None:
    run(tmp_path, "--seeds", "4")
    evaluator.requested.clear()
    run(tmp_path)
    assert evaluator.requested == [("late", 4), ("late", 5), ("late", 6), *(("never", seed) for seed in range(4, 8))]
    evaluator.requested.clear()
    run(tmp_path)
    assert evaluator.requested == []


def test_an_expert_is_judged_with_every_seed(evaluator: FakeEvaluator) -> None:
    expert = Judged("at once", Row("Gather", "", "", None))
    row = judge_order(evaluator, Order(expert, EvalConfig(device="emulated"), 3))  # type: ignore[arg-type]
    assert (row.evaluations, row.seed, row.is_as_expected) == (3, 0, False)


@pytest.mark.parametrize("problem", sorted({problem for problem, _ in AT_TINY}))
def test_mutants_that_are_right_by_argument_exist(problem: str) -> None:
    text = expert_source(find_problem(problem), "cu") or ""
    names = {weak.name for weak in weakened(text)} | {mutant.name for mutant in InlinedSource.of(text).mutants()}
    assert {mutant for of, mutant in AT_TINY if of == problem} <= names


def test_a_mutant_that_is_right_by_argument_is_not_judged_again(
    evaluator: FakeEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, "--seeds", "4")
    monkeypatch.setattr(emulated_mutants, "AT_TINY", {("Gather", "never"): "nobody waits"})
    evaluator.requested.clear()
    assert run(tmp_path) == 0
    assert [source for source, _ in evaluator.requested] == ["late"] * 3
    assert rows(tmp_path)["never"]["equivalent"] == "nobody waits"


def test_a_mutant_that_is_right_by_argument_may_pass(
    evaluator: FakeEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated_mutants, "AT_TINY", {("Gather", "never"): "nobody waits"})
    assert run(tmp_path) == 0
