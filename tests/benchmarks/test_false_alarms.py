"""The study of false alarms: chances of known distributions, and shares of errors as the rules see them."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics

import pytest
import torch

from benchmarks.false_alarms import chance_of, decisive
from benchmarks.false_alarms_report import PAGE, RESULT, not_shown, render
from benchmarks.honest_variants import honest_variants
from benchmarks.open_chances import WHY_OPEN
from benchmarks.proven_bounds import PROVEN, ProvenBound, proven_bound
from benchmarks.rare_events import (
    chance_of_any,
    fit_tail,
    log_chance_beyond_rounding,
    log_chance_normal,
    log_chance_of_count,
    log_chance_of_norm,
)
from benchmarks.rule_shares import (
    LARGEST_SHARE,
    TAIL,
    Rule,
    Shares,
    _relative_noise,
    half_steps,
    rounding_of,
    shares_of,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF
from pkb_gym.problems.catalogue import catalogue
from tests.problems.support import Job, Run, find_problem, run_jobs

VALUES, LARGEST = 40_000, 120
BFLOAT16_HALF_STEP = UNIT_ROUNDOFF["bfloat16"]


def log_chance(values: list[float], x: float) -> float:
    return fit_tail(sorted(values)[-LARGEST:], len(values)).log_chance_above(x)


def test_a_normal_tail_is_extrapolated_within_its_order_and_not_below() -> None:
    draws = random.Random(0)
    errors = [abs(draws.gauss(0, 1)) for _ in range(VALUES)]
    for x in (5.0, 6.0, 8.0):
        true = math.log(2 * statistics.NormalDist().cdf(-x))
        assert true < log_chance(errors, x) < 0.5 * true


def test_what_is_bounded_is_rarer_beyond_its_bound() -> None:
    """A sum of three roundings under the bound of its worst case, which no order of the sum exceeds."""
    draws = random.Random(1)
    errors = [abs(sum(draws.uniform(-1, 1) for _ in range(3))) / 4 for _ in range(VALUES)]
    assert max(errors) < 0.75 and log_chance(errors, 1.0) < -20


def test_a_heavy_tail_is_not_taken_for_a_light_one() -> None:
    """P(X > x) = 1e-6 x^-3."""
    draws = random.Random(2)
    errors = [1e-2 * draws.random() ** (-1 / 3) for _ in range(VALUES)]
    assert log_chance(errors, 1.0) > 2 * math.log(1e-6)


def test_no_error_has_no_chance() -> None:
    assert fit_tail([0.0] * 50, 1000).log_chance_above(1.0) == -math.inf
    assert chance_of_any(-math.inf, 1e6) == 0.0
    assert log_chance_of_norm([], 0.0) == log_chance_of_count([]) == -math.inf


def test_the_chance_of_a_norm_is_above_that_of_its_distribution_and_not_far() -> None:
    """Norms of 800 normal errors, 8 of them; r times their mean square has the chance e^-(400 (r - 1 - ln r))."""
    torch.manual_seed(3)
    errors = 0.5 * torch.randn(8, 800, dtype=torch.float64) / math.sqrt(800)
    norms = torch.linalg.vector_norm(errors, dim=1).tolist()
    noise = max(_relative_noise(row) * norm**2 for row, norm in zip(errors, norms, strict=True))
    assert 0.5 < noise / (0.5**2 / 1600) < 4, "the norm's variance is its square over twice the elements"
    true = -400 * (0.5**-2 - 1 + 2 * math.log(0.5))
    assert true < log_chance_of_norm(norms, noise) < -30


def test_the_chance_of_a_count_is_above_poissons() -> None:
    draws = random.Random(4)
    counts = [sum(draws.random() < 0.004 for _ in range(5000)) / 100 for _ in range(12)]  # 20 of 100 are allowed
    poisson = -20 + 100 - 100 * math.log(5)
    assert poisson < log_chance_of_count(counts) < -20


def test_the_chance_of_few_normal_errors_is_above_the_true_one() -> None:
    draws = random.Random(5)
    errors = [draws.gauss(0, 0.1) for _ in range(64)]
    true = math.log(math.erfc(10 / math.sqrt(2)))
    assert true < log_chance_normal(statistics.fmean(error**2 for error in errors), 64) < 0.5 * true


def test_the_error_before_the_last_rounding_is_separated_from_it() -> None:
    """Normal errors of 1e-3 steps: two in a thousand results round to a neighbour, which is within the bound."""
    torch.manual_seed(0)
    exact = 1 + 0.9 * torch.rand(200_000, dtype=torch.float64)
    other = exact + 1e-3 * 2**-7 * torch.randn_like(exact)
    results = [value.to(torch.bfloat16).double() for value in (exact, other)]
    bound = 2 * 2.0**-7 * torch.ones_like(exact)
    rounding = rounding_of(results[1], results[0], bound, torch.bfloat16)
    assert rounding is not None and rounding.is_one_step
    assert 100 < len(rounding.steps) < 250 and not rounding.beyond.any()
    mean = float(rounding.steps.sum()) / len(exact)
    assert mean == pytest.approx(1e-3 * math.sqrt(2 / math.pi), rel=0.3), "E |c - r| of the room, one step"
    sums = float(rounding.steps.sum()), float(rounding.steps.square().sum())
    assert log_chance_beyond_rounding(*sums, float(rounding.steps.max()), len(exact)) < -200


def test_a_bound_within_the_last_rounding_leaves_no_room() -> None:
    one = torch.ones(4, dtype=torch.float64)
    assert rounding_of(one + 2**-7, one, 2.0**-8 * one, torch.bfloat16) is None
    assert rounding_of(one + 2**-20, one, one, torch.bfloat16) is None, "not of this dtype"
    found = rounding_of(one + 3 * 2**-7, one, 2.0**-5 * one, torch.bfloat16)
    assert found is not None and not found.is_one_step
    assert found.beyond.tolist() == pytest.approx([2 / 3] * 4), "two steps of the three that are left"


def test_half_steps_are_those_of_the_dtype() -> None:
    values = torch.tensor([1.0, 1.5, 2.0, -3.0, 0.0], dtype=torch.float64)
    smallest = torch.finfo(torch.bfloat16).smallest_normal
    expected = [BFLOAT16_HALF_STEP * size for size in (1, 1, 2, 2)]
    assert half_steps(values, torch.bfloat16).tolist() == [*expected, BFLOAT16_HALF_STEP * smallest]


@pytest.fixture(scope="module")
def sums() -> dict[str, Run]:
    """One trial of LayerNormBackward by every variant."""
    variants = honest_variants(find_problem("LayerNormBackward"))
    runs = run_jobs([Job("LayerNormBackward", solution=solution) for solution in variants.values()])
    return dict(zip(variants, runs, strict=True))


def test_variants_round_elsewhere_and_are_right(sums: dict[str, Run]) -> None:
    assert set(sums) == {"baseline", "exact", "reordered", "wider"}
    truth = sums["baseline"]
    for name, run in sums.items():
        if name != "baseline":
            assert any(
                not torch.equal(run.outputs[rank][leaf], value)
                for rank, outputs in enumerate(truth.outputs)
                for leaf, value in outputs.items()
            ), name
        assert all(0 <= shares.top < 1 for shares in shares_of([(truth, run)]).values()), name


def test_a_share_is_above_1_where_the_rule_refuses(sums: dict[str, Run]) -> None:
    truth = sums["baseline"]
    wrong = dataclasses.replace(truth, outputs=[{n: 1.5 * v for n, v in out.items()} for out in truth.outputs])
    for rule, shares in shares_of([(truth, wrong)]).items():
        refused = sum(int(truth.wrong(rank, rule.output, wrong.outputs[rank][rule.output]).sum()) for rank in range(4))
        assert refused and int((shares.largest > 1).sum()) == refused
        assert chance_of(rule, shares, proven_bound("LayerNormBackward", rule.output, rule.kind)) == ("tail", 0.0)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("CombinedShardedGemms", {"elements", "norm"}), ("FP8ReduceScatterGrads", {"elements", "norm", "count"})],
)
def test_elements_norms_and_counts_are_all_seen(name: str, kinds: set[str]) -> None:
    """A rule's norm was invisible to the study, and so was how many elements may be off."""
    truth, other = run_jobs([Job(name), Job(name, solution=honest_variants(find_problem(name))["reordered"])])
    assert {rule.kind for rule in shares_of([(truth, other)])} == kinds


def test_a_kernel_that_rounds_less_often_than_the_reference_passes() -> None:
    """CombinedShardedGemms refused one that kept its hidden layer in float32: 1 of 512 elements at size tiny."""
    problem = find_problem("CombinedShardedGemms")
    solution = honest_variants(problem)["wider"]
    trials = range(6)
    runs = run_jobs([Job(problem.name, trial=t, solution=each) for t in trials for each in (None, solution)])
    for rule, shares in shares_of(list(zip(runs[::2], runs[1::2], strict=True))).items():
        assert 0 < shares.top < (0.6 if rule.kind == "elements" else 0.9), rule


def test_the_largest_shares_are_kept() -> None:
    shares = Shares()
    for values in (torch.linspace(0, 1, 3 * TAIL), torch.tensor([LARGEST_SHARE])):
        shares.add(values)
    assert (shares.count, shares.top, shares.largest.numel()) == (3 * TAIL + 1, LARGEST_SHARE, TAIL)
    assert float(shares.largest.min()) > 0.6 and not shares.has_room


def test_rare_neighbours_do_not_decide_beside_a_kernel_that_rounds_less() -> None:
    rare, often = Shares(), Shares()
    rare.add(torch.cat([torch.zeros(1000), torch.full((20,), 0.3)]))
    often.add(0.1 * torch.randn(1000).abs())
    assert decisive({"exact": rare, "wider": often}) == ["wider"]
    rare.add(torch.tensor([1.5]))
    assert "exact" in decisive({"exact": rare, "wider": often}), "one that is refused always counts"


def test_few_steps_to_neighbours_are_no_tail() -> None:
    """Shares of 0.8, of steps that cannot come two at a time, gave a chance of 1."""
    torch.manual_seed(0)
    exact = 1 + 0.9 * torch.rand(50_000, dtype=torch.float64)
    expected = exact.to(torch.bfloat16).double()
    got = (exact + 1e-5 * torch.randn_like(exact)).to(torch.bfloat16).double()
    bound = 2.5 * 2.0**-8 * torch.ones_like(exact)
    shares = Shares()
    shares.add((got - expected).abs() / bound, rounding_of(got, expected, bound, torch.bfloat16))
    assert shares.top == pytest.approx(0.8)
    assert chance_of(Rule("out", 0, "elements", 0), shares, None)[1] < -50


def test_reasons_speak_of_outputs_that_exist() -> None:
    problems = {problem.name: problem for problem in catalogue()}
    for entry in PROVEN:
        for name in entry.problems:
            assert set(entry.outputs) <= {out.name for out in problems[name].outputs}, name
    assert set(WHY_OPEN) <= set(problems)


@pytest.mark.parametrize("numbers", [4, 16])
def test_sums_in_any_order_stay_within_the_proven_bound(numbers: int) -> None:
    """The theorem behind AllReduce's rule, on sums of one binade, whose roundings are the largest."""
    torch.manual_seed(numbers)
    terms = (1 + torch.rand(numbers, 100_000, dtype=torch.float64)).to(torch.bfloat16)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    error = (total.double() - terms.double().sum(0)).abs() / terms.double().abs().sum(0)
    assert 0 < float(error.max()) <= (numbers - 1) * BFLOAT16_HALF_STEP
    assert isinstance(proven_bound("AllReduce", "out", "elements"), ProvenBound)
    assert proven_bound("AllGatherGemm", "out", "elements") is None


def test_the_page_is_that_of_the_result_and_no_right_kernel_was_refused() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == render(result), "run `python -m benchmarks.false_alarms_report`"
    refused = {(row["problem"], rule["output"]) for row in result["rows"] for rule in row["rules"] if rule["share"] > 1}
    assert not refused


def test_every_problem_that_rounds_is_shown_to_be_below_the_limit_or_has_a_reason() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert set(not_shown(result)) == set(WHY_OPEN)
    studied = {row["problem"] for row in result["rows"]}
    bit_by_bit = {
        problem.name
        for problem in catalogue()
        if {out.check.describe() for out in problem.outputs} <= {"same bits", "exact"}
    }
    assert {problem.name for problem in catalogue()} - studied <= bit_by_bit


def test_a_chance_above_the_limit_or_an_unknown_one_is_not_shown() -> None:
    rule = {"output": "out", "rule": "a rule", "kind": "elements", "values": 9, "model": "tail", "variant": "wider"}
    rows = [
        {"problem": name, "rules": [rule | {"chance": chance, "share": 0.5, "model": model}], "reason": {}}
        for name, chance, model in (("A", 9e-7, "tail"), ("B", 2e-6, "tail"), ("C", 0.0, "none"))
    ]
    assert not_shown({"rows": rows}) == ["B", "C"]
