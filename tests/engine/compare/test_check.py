"""Rules that tell right from wrong, and the reports made of what they say."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.compare.check import MAX_MISMATCHES, RankCheck, merge
from pkb_gym.engine.problem import Axes, rules
from pkb_gym.engine.problem.rules import CheckContext
from pkb_gym.engine.records.feedback import CheckReport, Mismatch

NAN, INF = float("nan"), float("inf")


def wrong(rule: rules.Check, got: list, expected: list, dtype: torch.dtype = torch.bfloat16) -> list[bool]:
    """Which elements a rule marks."""
    expected_tensor = torch.tensor(expected, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    axes = Axes({"W": 1, "r": 0}, dtype=name if dtype.is_floating_point else "bfloat16", problem="Test")
    context = CheckContext(axes, expected_tensor, [{}], {"out": expected_tensor}, {"out": expected_tensor}, "out")
    return rule.wrong(torch.tensor(got, dtype=dtype), context).flatten().tolist()


def test_exact() -> None:
    assert wrong(rules.exact(), [1.0, 2.0, NAN, -0.0, INF], [1.0, 2.5, NAN, 0.0, INF]) == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert wrong(rules.exact(), [NAN, 1.0, -INF], [1.0, NAN, INF]) == [True, True, True]
    assert wrong(rules.exact(), [1, 2], [1, 3], torch.int64) == [False, True]
    assert wrong(rules.exact(), [True, False], [True, True], torch.bool) == [False, True]


def test_same_bits() -> None:
    assert wrong(rules.same_bits(), [1.0, -0.0, NAN], [1.0, 0.0, NAN]) == [False, True, False]
    payload = torch.tensor([0x7FC1], dtype=torch.int16).view(torch.bfloat16)
    assert wrong(rules.same_bits(), [NAN], [payload.item()]) == [False]  # a Python float loses the payload
    context = CheckContext(Axes({"W": 1, "r": 0}, dtype="bfloat16", problem="T"), payload, [{}], {}, {}, "out")
    assert rules.same_bits().wrong(torch.tensor([NAN], dtype=torch.bfloat16), context).tolist() == [True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_close_scales_with_the_dtype(dtype: torch.dtype) -> None:
    rule = rules.close(rtol=2**-6)
    step = 2**-6 * rules.DTYPE_SCALE[str(dtype).removeprefix("torch.")]
    assert wrong(rule, [1 + step, 1 + 2 * step, 1 - step], [1.0, 1.0, 1.0], dtype) == [False, True, False]


def test_close_has_absolute_parts() -> None:
    assert wrong(rules.close(atol=0.5), [0.5, 0.75], [0.0, 0.0]) == [False, True]
    # rms of (3, 4, 0, 0) is 2.5
    assert wrong(rules.close(atol_rms=0.2), [3.0, 4.0, 0.5, 0.75], [3.0, 4.0, 0.0, 0.0]) == [False, False, False, True]


@pytest.mark.parametrize(
    "rule",
    [rules.close(rtol=1.0, atol=10.0), rules.allclose(), rules.rows_close(0.5), rules.norm_close(0.5)],
    ids=lambda rule: rule.describe(),
)
def test_what_is_not_a_number_is_never_close(rule: rules.Check) -> None:
    assert any(wrong(rule, [1.0, NAN], [1.0, 1.0]))
    assert any(wrong(rule, [1.0, INF], [1.0, 1.0]))
    assert any(wrong(rule, [1.0, -INF], [1.0, INF]))


def test_equal_infinities_and_nan_are_close() -> None:
    for rule in (rules.close(rtol=0.1), rules.allclose()):
        assert wrong(rule, [INF, -INF, NAN], [INF, -INF, NAN]) == [False, False, False]
        assert wrong(rule, [INF, NAN, 1.0], [NAN, INF, NAN]) == [True, True, True]
    for rule in (rules.rows_close(0.1), rules.norm_close(0.1)):
        assert wrong(rule, [INF, -INF, 1.0], [INF, -INF, 1.0]) == [False, False, False]
        assert wrong(rule, [INF, -INF, 1.0], [INF, INF, 1.0]) == [True, True, True]


def test_allclose_is_fixed() -> None:
    assert wrong(rules.allclose(), [0.009, 0.011, 101.0, 103.0], [0.0, 0.0, 100.0, 100.0], torch.float64) == [
        False,
        True,
        False,
        True,
    ]


def test_rows_close_marks_whole_rows() -> None:
    expected = [[1.0, 0.0], [0.0, 2.0]]
    assert wrong(rules.rows_close(0.1), [[1.0, 0.05], [0.0, 2.0]], expected, torch.bfloat16) == [False] * 4
    assert wrong(rules.rows_close(0.1), [[1.0, 0.0], [0.5, 2.0]], expected) == [False, False, True, True]


def test_norm_close_marks_all_or_nothing() -> None:
    assert wrong(rules.norm_close(0.1), [10.0, 0.5], [10.0, 0.0]) == [False, False]
    assert wrong(rules.norm_close(0.1), [10.0, 2.0], [10.0, 0.0]) == [True, True]


def exact_and_bound(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(3), torch.tensor([1.0, 0.0, INF])


def test_within_uses_the_bound_of_each_element() -> None:
    rule = rules.within(exact_and_bound, says="|out| <= bound")
    assert wrong(rule, [1.0, 0.5, 1e30], [9.0, 9.0, 9.0]) == [False, True, False]
    assert rule.describe() == "|out| <= bound"


def test_all_of_and_own_rules() -> None:
    negative = rules.rule(lambda got, context: got < 0, says="never negative")
    both = rules.all_of((rules.close(atol=1.0), negative))
    assert wrong(both, [0.5, -0.5, 3.0], [0.0, 0.0, 0.0]) == [False, True, True]
    assert both.describe() == "close(atol=1, for bfloat16) and never negative"


def test_empty_outputs_are_right() -> None:
    for rule in (rules.exact(), rules.same_bits(), rules.close(rtol=0.1, atol_rms=0.1), rules.norm_close(0.1)):
        assert wrong(rule, [], []) == []


def mismatch(**changes: object) -> Mismatch:
    values: dict = {
        "trial": 3,
        "rank": 2,
        "output": "out",
        "reason": "values",
        "shape": (4, 8),
        "dtype": "bfloat16",
        "wrong_elements": 8,
        "elements": 32,
        "bounding_box": ((0, 3), (6, 7)),
        "worst_index": (1, 7),
        "got": "0",
        "expected": "22.4",
        "rule": "exact",
    }
    return Mismatch(**values | changes)


def test_the_words_of_a_mismatch() -> None:
    assert str(mismatch()) == (
        "rank 2, out (4, 8) bfloat16, trial 3: 8 of 32 elements differ (25 %), indices [0..3, 6..7]; "
        "worst [1, 7]: got 0, expected 22.4; rule: exact"
    )
    shape = mismatch(reason="shape_or_dtype", got="(32,) float32", expected="(4, 8) bfloat16")
    assert str(shape) == "rank 2, out (4, 8) bfloat16, trial 3: expected (4, 8) bfloat16, got (32,) float32"
    modified = mismatch(
        reason="input_modified",
        output="x",
        bounding_box=None,
        worst_index=None,
        rule="this argument must stay as it is",
    )
    assert str(modified) == (
        "rank 2, x (4, 8) bfloat16, trial 3: 8 of 32 elements were modified (25 %); "
        "rule: this argument must stay as it is"
    )
    scalar = mismatch(shape=(), bounding_box=(), worst_index=(), wrong_elements=1, elements=1)
    assert "1 of 1 elements differ (100 %); worst []: got 0" in str(scalar)


def rank_check(rank: int, *found: Mismatch, right: int = 32) -> RankCheck:
    return RankCheck(rank=rank, outputs=1, elements=32, elements_right=right, mismatches=found)


def test_a_report_over_ranks_and_calls() -> None:
    report = merge([rank_check(0), rank_check(1), rank_check(2, mismatch(), right=24)], trials=1)
    assert (report.outputs_compared, report.outputs_right) == (3, 2)
    assert (report.elements_compared, report.elements_right) == (96, 88)
    assert report.right_share == pytest.approx(88 / 96)
    assert not report.passed
    assert merge([rank_check(0), rank_check(1)], trials=1).passed


def test_the_worst_comes_first_and_the_list_is_short() -> None:
    found = [mismatch(rank=rank, wrong_elements=rank + 1) for rank in range(12)]
    modified = mismatch(rank=13, reason="input_modified", wrong_elements=32)
    shape = mismatch(rank=14, reason="shape_or_dtype", wrong_elements=1)
    report = merge([rank_check(m.rank, m) for m in (*found, modified, shape)], trials=1)
    assert len(report.mismatches) == MAX_MISMATCHES
    assert [m.rank for m in report.mismatches[:3]] == [14, 11, 10]
    assert report.outputs_right == 14 - 13, "an input that was modified is no wrong output"


def test_a_modified_input_alone_fails_the_check() -> None:
    report = merge([rank_check(0, mismatch(rank=0, reason="input_modified"))], trials=1)
    assert isinstance(report, CheckReport)
    assert (report.outputs_right, report.elements_right) == (1, 32)
    assert not report.passed
