"""Mutants on GPUs: compiled before they are judged, gangs side by side, and where a later run goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import emulated_mutants_on_gpus
from benchmarks.emulated_mutants import Judged, Row, mutants_of
from benchmarks.emulated_mutants_on_gpus import chosen, configs, main
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import expert_source, find_problem

GATHER = find_problem("Gather")
FAILURES = {"hangs": ("timeout", 0), "late": ("output_mismatch", 1), "crashes": ("compiled_only", 0)}
"""Name of a mutant -> its failure, and the evaluation that shows it."""


class FakeEvaluator:
    """Notes all evaluations, and how many gangs judged at once."""

    requested: list[tuple[str, str, int]]
    at_once: threading.Barrier | None

    def __init__(self, cache_dir: Path | None) -> None:
        assert cache_dir is not None and cache_dir.name == "compiled"
        self._busy = threading.Lock()

    def __enter__(self) -> FakeEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self._busy.locked()

    def evaluate(self, problem: object, source: str, config: EvalConfig) -> SimpleNamespace:
        self.requested.append((source, str(config.until), config.trials or 0))
        if config.until == "compile":
            return SimpleNamespace(failure=None, passed=True, message="")
        assert self._busy.acquire(blocking=False), "a gang judges one mutant at a time"
        try:
            if self.at_once is not None:
                self.at_once.wait(timeout=60)
        finally:
            self._busy.release()
        failure, seed = FAILURES.get(source, (None, 0))
        shows = failure is not None and config.seed == seed
        return SimpleNamespace(failure=failure if shows else None, passed=not shows, message="no end")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = ["hangs", "late", "passes", "crashes"]

    def fake(_of: object, _problems: object) -> list[Judged]:
        return [Judged(name, Row("Gather", "no wait", name, 1)).with_digest() for name in found]

    monkeypatch.setattr(emulated_mutants_on_gpus, "chosen", fake)
    monkeypatch.setattr(emulated_mutants_on_gpus, "LocalEvaluator", FakeEvaluator)
    monkeypatch.setenv("PKB_GYM_COMMIT", "c" * 12)
    monkeypatch.setattr(FakeEvaluator, "requested", [], raising=False)
    monkeypatch.setattr(FakeEvaluator, "at_once", None, raising=False)
    return found


def run(folder: Path, *options: str) -> dict[str, Any]:
    arguments = ("--problems", "Gather", "--ranks-per-gpu", "2", "--calls", "14", "86", "--jobs", "2")
    main([*arguments, "--compiled", str(folder / "compiled"), "--out", str(folder), *options])
    path = folder / "emulated_mutants_1_gpus_of_2_ranks.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def test_a_mutant_is_compiled_and_then_evaluated_until_it_is_refused(names: list[str], tmp_path: Path) -> None:
    result = run(tmp_path)
    judged = [(source, calls) for source, until, calls in FakeEvaluator.requested if until == "check"]
    assert sorted(judged) == sorted(
        [("hangs", 14), ("late", 14), ("late", 86), ("passes", 14), ("passes", 86), ("crashes", 14)]
    )
    order = [(source, until) for source, until, _ in FakeEvaluator.requested]
    assert all(order.index((name, "compile")) < order.index((name, "check")) for name in names)
    rows = {row["mutant"]: row for row in result["rows"]}
    found = {name: (row["failure"], row["evaluations"]) for name, row in rows.items()}
    assert found == {"hangs": ("timeout", 1), "late": ("output_mismatch", 2), "passes": ("", 2), "crashes": ("", 0)}
    assert (result["calls"], result["calls_of_evaluations"], result["world_size"]) == (100, [14, 86], 2)
    FakeEvaluator.requested.clear()
    run(tmp_path)
    assert {source for source, *_ in FakeEvaluator.requested} == {"crashes"}, "it has no verdict yet"


def test_gangs_judge_side_by_side(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names[:] = ["one", "two"]
    monkeypatch.setattr(FakeEvaluator, "at_once", threading.Barrier(2))
    assert len(run(tmp_path, "--gangs", "2")["rows"]) == 2


def test_nothing_begins_after_the_deadline(names: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, "--budget-s", "0") == {} and not FakeEvaluator.requested and names


def test_rows_of_the_same_sources_stay_with_their_commit(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated_mutants_on_gpus, "commit", lambda: "c" * 12)
    names[:] = ["hangs", "of other sources"]
    result = run(tmp_path)
    assert {row["commit"] for row in result["rows"]} == {"c" * 12}
    del result["rows"][0]["commit"]  # as of a result whose rows have none
    (tmp_path / "emulated_mutants_1_gpus_of_2_ranks.json").write_text(json.dumps(result | {"commit": "b" * 12}))
    monkeypatch.setattr(emulated_mutants_on_gpus, "commit", lambda: "d" * 12)
    FakeEvaluator.requested.clear()
    names[:] = ["hangs", "passes"]
    found = {row["mutant"]: row["commit"] for row in run(tmp_path)["rows"]}
    assert {source for source, *_ in FakeEvaluator.requested} == {"passes"}
    assert found["passes"] == "d" * 12 and found["hangs"] in ("b" * 12, "c" * 12) and len(found) == 2


def test_wrong_mutants_of_a_result_are_chosen() -> None:
    operations = [judged.row for judged in mutants_of(GATHER, expert_source(GATHER, "cu") or "")]
    wrong, right = operations[:2]
    of = [
        Row("Gather", wrong.kind, wrong.mutant, 1, digest="of older sources"),
        Row("Gather", right.kind, right.mutant, 1, equivalent="nobody waits"),
        Row("Scatter", wrong.kind, wrong.mutant, 1),
    ]
    found = chosen(of, [GATHER])
    assert [(judged.row.mutant, bool(judged.source)) for judged in found] == [(wrong.mutant, True), ("", True)]
    assert found[0].row.digest == wrong.digest and found[1].source == expert_source(GATHER, "cu")
    with pytest.raises(SystemExit, match="no such mutants: Gather, no wait, gone"):
        chosen([Row("Gather", "no wait", "gone", 1)], [GATHER])


def test_an_evaluation_has_its_own_seed_and_number_of_calls() -> None:
    made = configs(2, 2, (14, 86))
    assert [(config.trials, config.seed, config.ranks_per_gpu) for config in made] == [(14, 0, 2), (86, 1, 2)]
    assert configs(2, 1, (100,))[0].ranks_per_gpu is None
