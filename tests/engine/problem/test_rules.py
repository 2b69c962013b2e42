"""The rules that problems declare: which elements each of them marks."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.problem import Axes, rules
from pkb_gym.engine.problem.block_rules import blocks_close
from pkb_gym.engine.problem.row_rules import close_by_rows, summed_rows_close
from pkb_gym.engine.problem.rules import CheckContext

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


def test_close_takes_the_next_float16_of_a_small_number() -> None:
    """A kernel that rounds a factor elsewhere than the baseline was refused for 137 * 2**-24, where that has 136."""
    step = 2.0**-24
    for rule in (rules.close(rtol=1e-2), rules.close(atol_rms=1e-3), rules.close(rtol=1e-2, atol=1e-9)):
        assert wrong(rule, [137 * step, 138 * step], [136 * step, 136 * step], torch.float16) == [False, True]


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


def test_rows_whose_terms_cancel_are_held_to_the_size_of_the_others() -> None:
    expected = [[3.0, 4.0], [0.0, 0.01]]
    assert wrong(summed_rows_close(0.1), [[3.0, 4.4], [0.3, 0.01]], expected) == [False] * 4
    assert wrong(summed_rows_close(0.1), [[3.0, 4.6], [0.0, 0.01]], expected) == [True, True, False, False]
    assert wrong(summed_rows_close(0.1), [[3.0, 4.0], [0.5, 0.01]], expected) == [False, False, True, True]


@pytest.mark.parametrize(
    ("rows", "errors", "passes"),
    [
        (1000, [0.29], True),
        (1000, [0.31], False),
        (1999, [0.2, 0.2], False),
        (2000, [0.2, 0.2], True),
        (999, [0.2], False),
    ],
)
def test_one_row_in_a_thousand_may_have_larger_terms_than_it_shows(
    rows: int, errors: list[float], passes: bool
) -> None:
    got = torch.ones(rows, 2)
    got[: len(errors)] += torch.tensor(errors).unsqueeze(-1)
    marked = wrong(summed_rows_close(0.1), got.tolist(), torch.ones(rows, 2).tolist())
    assert sum(marked) == (0 if passes else 2 * len(errors))


def test_rows_of_several_calls_are_judged_each_by_its_own_call() -> None:
    """Calls that are alike are compared at once, by `torch.vmap`."""
    expected, got = torch.ones(2, 1000, 2), torch.ones(2, 1000, 2)
    got[0, :1] += 0.2
    got[1, :2] += 0.2

    def of_one_call(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        axes = Axes({"W": 1, "r": 0}, dtype="bfloat16", problem="Test")
        context = CheckContext(axes, expected, [{}], {"out": expected}, {"out": expected}, "out")
        return summed_rows_close(0.1).wrong(got, context)

    marked: torch.Tensor = torch.vmap(of_one_call)(got, expected)
    assert marked.sum(dim=(1, 2)).tolist() == [0, 4]


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
    rule = rules.within(exact_and_bound, description="|out| <= bound")
    assert wrong(rule, [1.0, 0.5, 1e30], [9.0, 9.0, 9.0]) == [False, True, False]
    assert rule.describe() == "|out| <= bound"


def test_all_of_and_own_rules() -> None:
    negative = rules.rule(lambda got, context: got < 0, description="never negative")
    both = rules.all_of((rules.close(atol=1.0), negative))
    assert wrong(both, [0.5, -0.5, 3.0], [0.0, 0.0, 0.0]) == [False, True, True]
    assert both.describe() == "close(atol=1, for bfloat16) and never negative"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (rules.close(rtol=1.0, atol_rms=0.5), "close(rtol=0.000977, atol_rms=0.000488, for float32)"),
        (rules.rows_close(0.5), "rows_close(rel=0.000488, for float32)"),
        (rules.norm_close(0.5), "norm_close(rel=0.000488, for float32)"),
        (summed_rows_close(0.5), "summed_rows_close(rel=0.000488, of one row in 1000 0.00146, for float32)"),
        (close_by_rows(1.0, 0.5), "close_by_rows(rtol=0.000977, atol_rms=0.000488, for float32)"),
        (blocks_close(0.5, 0), "blocks_close(rel=0.000488 (1 + 2 / sqrt(elements)), for float32)"),
        (rules.all_of((rules.close(atol=1.0), rules.exact())), "close(atol=0.000977, for float32) and exact"),
    ],
)
def test_rules_name_the_tolerances_of_the_dtype(rule: rules.Check, words: str) -> None:
    """A float32 result was said to be held to a thousand times what it is."""
    assert rule.describe("float32") == words


def test_empty_outputs_are_right() -> None:
    for rule in (rules.exact(), rules.same_bits(), rules.close(rtol=0.1, atol_rms=0.1), rules.norm_close(0.1)):
        assert wrong(rule, [], []) == []
