"""The rule for sums over ranks: roundings of the addends' dtype pass in any order, narrower addends on no ranks."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.problem import Axes
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, rounded_sum, wrong_sum

WORLD_SIZES = (2, 3, 4, 8, 16)
SHAPES = ((1,), (7,), (32, 48), (256, 256))
SMALLEST = -4
"""Exponent of the smallest normal number of narrow addends."""


def exact(addends: torch.Tensor, dtype: str = "bfloat16") -> RoundedSum:
    """The sum of addends [W, *shape], as the collectives' problems have it."""
    terms, W, roundoff = addends.double(), len(addends), UNIT_ROUNDOFF[dtype]
    total = terms.sum(0)
    deviation = deviation_of_sum(total, terms.square().sum(0), W, roundoff)
    return RoundedSum(total, roundoff * W * terms.abs().sum(0), deviation)


def draw(world_size: int, shape: tuple[int, ...], of_one_sign: bool, seed: int) -> torch.Tensor:
    normal = torch.randn(world_size, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normal.abs() if of_one_sign else normal


def one_after_the_other(addends: torch.Tensor) -> torch.Tensor:
    """Each partial sum is rounded."""
    total = addends[0].clone()
    for addend in addends[1:]:
        total += addend
    return total


def in_pairs(addends: torch.Tensor) -> torch.Tensor:
    while len(addends) > 1:
        odd = addends[2 * (len(addends) // 2) :]
        addends = torch.cat([addends[:-1:2] + addends[1::2], odd])
    return addends[0]


def narrowed(addends: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """Numbers of so many bits of mantissa, three of exponent and a sign."""
    step = torch.exp2(addends.abs().clamp(min=1e-30).log2().floor().clamp(min=SMALLEST) - mantissa_bits)
    return (addends / step).round() * step


@pytest.mark.parametrize("of_one_sign", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_order_of_addition_is_right(world_size: int, shape: tuple[int, ...], of_one_sign: bool) -> None:
    for seed in range(20 if shape != SHAPES[-1] else 4):  # the largest has many elements
        for dtype in (torch.bfloat16, torch.float16):
            whole = draw(world_size, shape, of_one_sign, seed)
            addends = whole.to(dtype)
            expected = exact(addends, str(dtype).removeprefix("torch."))
            for add in (one_after_the_other, in_pairs):
                assert not wrong_sum(add(addends), expected).any()
            assert not wrong_sum(expected.total.to(dtype), expected).any()
            # As products are that are rounded before they are added.
            unrounded = exact(whole, str(dtype).removeprefix("torch."))
            assert not wrong_sum(one_after_the_other(addends), unrounded).any()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_addends_of_eight_bits_are_wrong(world_size: int) -> None:
    addends = draw(world_size, (32, 48), False, 0).bfloat16()
    expected = exact(addends)
    narrow = narrowed(addends.double(), 4)
    narrow[0] = addends[0].double()
    got = narrow.sum(0).bfloat16()
    assert wrong_sum(got, expected).any()
    if world_size >= 8:
        assert not ((got.double() - expected.total).abs() > expected.bound).any(), "the bounds alone are too wide"


def test_single_elements_are_named_where_they_are_outside_their_bounds() -> None:
    addends = draw(4, (32, 48), False, 0).bfloat16()
    got = one_after_the_other(addends)
    got[3, 5] += 1000
    assert wrong_sum(got, exact(addends)).nonzero().tolist() == [[3, 5]]


def test_sums_without_roundings_are_exact() -> None:
    whole = torch.arange(6.0)
    expected = RoundedSum(whole, torch.zeros(6), torch.zeros(6))
    assert not wrong_sum(whole.bfloat16(), expected).any()
    assert wrong_sum((whole + torch.tensor([0, 0, 0, 0, 0, 1.0])).bfloat16(), expected).tolist() == [False] * 5 + [True]


def test_an_empty_sum_is_right() -> None:
    empty = torch.zeros(0)
    assert not wrong_sum(empty.bfloat16(), RoundedSum(empty, empty, empty)).any()


def test_what_is_no_number_is_wrong() -> None:
    addends = draw(2, (4,), False, 0).bfloat16()
    got = one_after_the_other(addends)
    got[1] = float("nan")
    assert wrong_sum(got, exact(addends)).tolist() == [False, True, False, False]


def test_the_rule_names_both_halves() -> None:
    rule = rounded_sum(lambda context: exact(context.expected[None]), "|out - sum| <= 2^-8 W sum |x_r|")
    assert rule.describe() == (
        "|out - sum| <= 2^-8 W sum |x_r| and ||error|| <= 1.5 times its expectation with one rounding per addition"
    )
    tensor = torch.ones(3, dtype=torch.bfloat16)
    context = CheckContext(Axes({"W": 1, "r": 0}, dtype="bfloat16", problem="Test"), tensor, [{}], {}, {}, "out")
    assert rule.wrong(tensor, context).tolist() == [False] * 3
