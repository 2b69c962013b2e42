"""`pkb check-problem`: the template passes every check, and each check fails where it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pkb_gym.authoring.checks import CheckResult, TinyEvaluator, check_candidates, check_cost, check_problem
from pkb_gym.authoring.freedoms import Freedom
from pkb_gym.authoring.mutants import (
    NOT_APPLICABLE,
    changes_any,
    data_places,
    finer_source,
    mutants,
    oracle_source,
    other_source,
)
from pkb_gym.authoring.wrong_inputs import bfloat16, zeros
from pkb_gym.cli import main
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support import problem_folders
from pkb_gym.problems.catalogue import choose_problem, find_problem, reference_source
from pkb_gym.rewards.examples import failed, timed
from tests.docs.pages import DOCS

TEMPLATE = DOCS / "own_problem" / "my_pkb_problems" / "sharded_softmax"


class Accepts:
    """An evaluator that finds everything right, or everything wrong in one way."""

    def __init__(self, failure: str | None = None, message: str = "why") -> None:
        self.failure, self.message = failure, message
        self.sources: list[str] = []

    def evaluate(self, problem: object, source: str, config: object, progress: object = None) -> Feedback:
        self.sources.append(source)
        if self.failure is None:
            return timed(baseline_us=100, speedup=2.0)
        return failed(self.failure, message=self.message)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})


@pytest.fixture
def problem() -> Problem:
    return choose_problem(TEMPLATE)


def variant(folder: Path, old: str, new: str) -> Path:
    """The template with another declaration."""
    folder.mkdir()
    text = (TEMPLATE / "problem.py").read_text()
    assert old in text
    (folder / "problem.py").write_text(text.replace(old, new))
    (folder / "reference.py").write_text((TEMPLATE / "reference.py").read_text())
    return folder


def by_name(results: object) -> dict[str, CheckResult]:
    return {result.name: result for result in results}


@pytest.mark.slow
def test_the_template_passes_every_check(local_evaluator: LocalEvaluator) -> None:
    results = by_name(check_problem(TEMPLATE, local_evaluator))
    assert {result.state for result in results.values()} == {"passed"}, results
    refused = [result.detail for name, result in results.items() if name.startswith("refused: ")]
    assert len(refused) == 9 and set(refused) <= {"output_mismatch", "wrong_shape_or_dtype"}
    right = {"oracle, 4 ranks", "expert.cpp", "tolerance: float64 inside passes", "tolerance: any order passes"}
    assert right <= set(results)


@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ('"N": 8192', '"N": 8188', "sizes fit", "N=8188 must be a multiple of W=8"),
        ("return (make.normal", "return ()\n    return (make.normal", "inputs are as declared", "0 values for x"),
        ('make.normal("x") * 3', 'make.normal("x") * 0 + 1', "inputs differ", "have the same inputs"),
        ("vector_flops=5 * ax.M", "vector_flops=1 / ax.M", "cost", "vector_flops falls from"),
        ("vector_flops=5", "vector_flops=-5", "declaration loads", "cost vector_flops must be a number >= 0"),
        (
            "PROBLEM = Problem(",
            "import nothing_of_that\nPROBLEM = Problem(",
            "declaration loads",
            "No module named",
        ),
    ],
)
def test_what_a_declaration_gets_wrong_is_named(tmp_path, old, new, name, words):
    results = by_name(check_problem(variant(tmp_path / "mine", old, new), Accepts()))
    assert results[name].state == "failed" and words in results[name].detail and results[name].remedy


def test_a_narrow_tolerance_is_found_by_another_arithmetic(tmp_path, local_evaluator: LocalEvaluator) -> None:
    folder = variant(tmp_path / "mine", "check=close(rtol=2**-7)", "check=exact()")
    text = (folder / "problem.py").read_text().replace("Trials, close", "Trials, exact")
    (folder / "problem.py").write_text(text)
    reference = (folder / "reference.py").read_text()
    (folder / "reference.py").write_text(reference.replace("wide = x.float()", "wide = x"))
    problem = choose_problem(folder)
    judge, text = TinyEvaluator(problem, local_evaluator), reference_source(problem)
    for source, dtype in ((finer_source(problem, text), None), (other_source(problem, text, 0, Freedom()), "float32")):
        result = judge.right("finer", source, "widen it", dtype=dtype)
        assert result.state == "failed" and result.remedy == "widen it" and "output_mismatch" in result.detail


@pytest.mark.parametrize("op", ["MAX", "SUM"])
def test_means_for_sums_need_a_sum(op: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a reference that takes a maximum over ranks the mutant was the reference: no fault of the problem."""
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    reference = f"""import torch.distributed as dist
def solution(x):
    dist.all_reduce(x, op=dist.ReduceOp.{op})
    return x
"""
    (mutant,) = (one for one in mutants(problem, reference, []) if one.name == "means for sums")
    candidate: dict[str, Any] = {}
    exec(mutant.source, candidate)
    if op == "SUM":
        assert candidate["solution"](torch.ones(2)).tolist() == [0.5, 0.5]
    else:
        with pytest.raises(RuntimeError, match=f"{NOT_APPLICABLE}: the reference sums nothing over ranks"):
            candidate["solution"](torch.ones(2))


def test_a_tolerance_that_accepts_anything_lets_wrong_solutions_pass(tmp_path, local_evaluator: LocalEvaluator) -> None:
    problem = choose_problem(variant(tmp_path / "mine", "close(rtol=2**-7)", "close(rtol=1.0, atol=2.0)"))
    made = {each.name: each.source for each in mutants(problem, reference_source(problem), [])}
    for name in ("zeros for every output", "no communication"):
        result = TinyEvaluator(problem, local_evaluator).wrong(name, made[name])
        assert (result.state, result.detail) == ("failed", "it passes") and result.remedy


def test_an_oracle_that_disagrees_is_a_failure(tmp_path, local_evaluator: LocalEvaluator) -> None:
    oracle = (TEMPLATE / "oracle.py").read_text()
    problem = choose_problem(TEMPLATE)
    judge = TinyEvaluator(problem, local_evaluator)
    wrong = oracle_source(problem, oracle.replace("whole.double()", "(2 * whole).double()"))
    assert judge.right("oracle", wrong, "correct one").state == "failed"


FP8_ORACLE = """
import torch


def oracle(ranks):
    whole = [(y.float().view(-1, b) * s.float().view(-1, 1)).view_as(y) for y, s, b in ranks]
    return [torch.stack([one[rank] for one in whole]) for rank in range(len(ranks))]
"""


def test_an_oracle_is_given_float8(local_evaluator: LocalEvaluator) -> None:
    """Gathering tensors by pickle alone failed in torch for float8, and so the oracle was said to disagree."""
    judge = TinyEvaluator(problem := find_problem("BlockedFP8Dequantize"), local_evaluator)
    result = judge.right("oracle", oracle_source(problem, FP8_ORACLE), "correct one")
    assert result.state == "passed", result.detail


def test_verdicts_of_candidates(problem: Problem) -> None:
    """A wrong solution that falls over says nothing of the check; one that equals the reference does not apply."""
    wrong = by_name(check_candidates(problem, Accepts()))
    assert wrong["refused: no communication"].state == "failed" and wrong["reference, 2 ranks"].state == "passed"
    reference = by_name(check_candidates(problem, Accepts("output_mismatch")))
    assert list(reference) == ["reference, 1 ranks"] and reference["reference, 1 ranks"].state == "failed"
    judge = TinyEvaluator(
        problem, Accepts("runtime_error", "rank 0: pkb check-problem: does not apply: it takes a module\nmore")
    )
    assert (judge.right("x", "", "").state, judge.wrong("x", "").detail) == ("skipped", "it takes a module")
    assert TinyEvaluator(problem, Accepts("runtime_error")).wrong("x", "").state == "skipped"
    assert TinyEvaluator(problem, Accepts("output_mismatch")).wrong("x", "").state == "passed"


def test_a_problem_that_only_moves_data_is_no_failure() -> None:
    """Without work on one rank, and with NaNs whose bits float64 does not keep, GNNSparseEmbedding failed."""
    moving = find_problem("GNNSparseEmbedding")
    assert check_cost(moving)
    finer = by_name(check_candidates(moving, Accepts()))["tolerance: float64 inside passes"]
    assert finer.state == "skipped" and "bit for bit" in finer.detail


def test_mutants_are_of_what_changes_something(problem: Problem) -> None:
    whole = torch.arange(4.0).view(2, 2)
    names = {mutant.name for mutant in mutants(problem, "", [[whole], [torch.zeros(2, 2)]])}
    assert "first rank's data alone" not in names and "inputs: bfloat16" not in names
    assert "inputs: first half of the rows twice" in names
    assert changes_any([[whole / 3, None]], bfloat16) and not changes_any([torch.arange(3)], zeros)


def test_places_of_data_arguments() -> None:
    muon = find_problem("TPMuon")
    places = data_places(muon)
    assert [muon.args[place].name for place in places] == [arg.name for arg in muon.data_args]
    assert [place for place, mutable in places.items() if mutable] == [
        place for place, arg in enumerate(muon.args) if getattr(arg, "mutable", False)
    ]


def test_exit_statuses_of_the_command(tmp_path, capsys, monkeypatch) -> None:
    folder = variant(tmp_path / "mine", "vector_flops=5", "vector_flops=-5")
    assert main(["check-problem", str(folder), "--json"], lambda key: Accepts()) == 1
    assert json.loads(capsys.readouterr().out)[0]["state"] == "failed"
    assert main(["check-problem", str(tmp_path)], lambda key: Accepts()) == 2
    assert "a folder without a problem.py" in capsys.readouterr().err
    problem_folders._REGISTERED.clear()
    monkeypatch.chdir(tmp_path)  # a bare name is a path too, where no problem bears it
    assert main(["check-problem", "mine"], lambda key: Accepts()) == 1
    problem_folders._REGISTERED.clear()
    assert main(["check-problem", str(TEMPLATE)], lambda key: Accepts("infrastructure")) == 3
