"""The description of a mismatch."""

from __future__ import annotations

import struct
import sys

import pytest
import torch

from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.layout import Workload, placed_results
from pkb_gym.engine.compare.mismatches import contents, is_untouched, wrong_shape, wrong_values
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.wire.orders import Claim
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compare.block import COPIES, RANK, Block

SIZED_BY_DATA = find_problem("UlyssesAllGatherVariable")
MARKS = find_problem("SAM3IoUSuppression")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("claim", "got"),
    [
        (None, "() nothing"),
        (Claim((2, 3), "bfloat16"), None),
        (Claim((3, 2), "bfloat16"), "(3, 2) bfloat16"),
        (Claim((2, 3), "float32"), "(2, 3) float32"),
        (Claim((1 << 39,), "bfloat16"), f"({1 << 39},) bfloat16"),
        (Claim((2, 3), "\u202e\n" + "x" * 5000), r"(2, 3) \u202e\n" + "x" * 38),
    ],
)
def test_a_size_that_depends_on_the_data_must_be_claimed(claim: Claim | None, got: str | None) -> None:
    planned = Workload(SIZED_BY_DATA, "tiny", 2, "bfloat16", "robust", b"key", 0, 0).plan([0], False, 0).sets[0]
    ((_, placed),) = placed_results(SIZED_BY_DATA, planned, RANK)
    block = Block(COPIES, 1)
    call = Call(SIZED_BY_DATA, planned, RANK, "robust", {}, block.reference_heap, block.candidate_heap, {})
    mismatch = wrong_shape(call, placed, claim, torch.ones(2, 3, dtype=torch.bfloat16))
    assert (None if mismatch is None else mismatch.got) == got


@pytest.mark.parametrize(
    ("got", "expected", "worst", "box", "shown"),
    [
        ([[1.0, 2.0], [3.0, 9.0]], [[1.0, 2.5], [3.0, 4.0]], (1, 1), ((0, 1), (1, 1)), ("9", "4")),
        ([[1.0, NAN], [0.0, 9.0]], [[1.0, 2.0], [0.0, 4.0]], (0, 1), ((0, 1), (1, 1)), ("nan", "2")),
        ([[INF, 2.0], [0.0, 4.0]], [[INF, 3.0], [0.0, 4.0]], (0, 1), ((0, 0), (1, 1)), ("2", "3")),
        (7, 5, (), (), ("7", "5")),
        ([True, False], [True, True], (1,), ((1, 1),), ("False", "True")),
        ([1 + 1j, 0j], [1 + 1j, 3j], (1,), ((1, 1),), ("0+0j", "0+3j")),
    ],
)
def test_the_worst_element_is_named(
    got: object, expected: object, worst: tuple[int, ...], box: object, shown: tuple[str, str]
) -> None:
    (call,) = Block(COPIES, 1).calls()
    have, should = torch.tensor(got), torch.tensor(expected)
    mismatch = wrong_values(call, "out", "equal", have, should, have != should)
    assert (mismatch.worst_index, mismatch.bounding_box or ()) == (worst, box)
    assert (mismatch.got, mismatch.expected) == shown
    assert mismatch.wrong_elements == int((have != should).sum())


@pytest.mark.parametrize(
    ("got", "expected", "shown"),
    [
        (1.0000001, 1.0, ("1.0000001000000001", "1")),
        (-0.0, 0.0, ("-0", "0")),
        (
            struct.unpack("d", (0x7FF8_0000_0000_0001).to_bytes(8, "little"))[0],
            NAN,
            ("nan (bits 0x7ff8000000000001)", "nan (bits 0x7ff8000000000000)"),
        ),
    ],
)
def test_elements_that_differ_are_told_apart(got: float, expected: float, shown: tuple[str, str]) -> None:
    """A kernel that must keep bits, and lost a NaN's, was told: got nan, expected nan."""
    (call,) = Block(COPIES, 1).calls()
    have, should = torch.tensor([got], dtype=torch.float64), torch.tensor([expected], dtype=torch.float64)
    mismatch = wrong_values(call, "out", "same bits", have, should, torch.tensor([True]))
    assert (mismatch.got, mismatch.expected) == shown


def test_naming_an_element_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.unravel_index imports SymPy: a second in each reference rank, and 10 ms of every later collection there."""
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)  # imports of it fail
    (call,) = Block(COPIES, 1).calls()
    have, should = torch.zeros(2, 3), torch.eye(2, 3)
    with torch.device("cpu"):
        assert wrong_values(call, "out", "equal", have, should, have != should).worst_index == (0, 0)


@pytest.mark.parametrize(
    ("dtype", "left", "wrong", "counted"),
    [
        (torch.bfloat16, 1, 1, 1),
        (torch.bfloat16, 2, 2560, 0),  # of random bits
        (torch.bfloat16, 1280, 2560, 1280),
        (torch.int64, 1, 2560, 1),
        (torch.uint8, 1, 9, 0),
        (torch.uint8, 8, 9, 8),
        (torch.uint8, 9, 9, 9),
        (torch.int8, 32, 320, 0),
        (torch.int8, 100, 320, 100),
        (torch.complex64, 3, 4, 3),
    ],
)
def test_elements_that_were_left_are_counted_unless_they_are_so_by_chance(
    dtype: torch.dtype, left: int, wrong: int, counted: int
) -> None:
    (call,) = Block(COPIES, 1).calls()
    have = torch.zeros(wrong + 1, dtype=dtype)
    have[1 : 1 + left].view(torch.uint8).fill_(poison_of(call.rank))
    marks = torch.arange(wrong + 1) > 0
    assert wrong_values(call, "out", "equal", have, torch.ones_like(have), marks).unwritten_elements == counted


@pytest.mark.parametrize(("usual", "left", "counted"), [(0, 30, 30), (16, 30, 0), (16, 90, 90), (64, 100, 0)])
def test_poison_that_is_a_value_like_others_is_counted_where_there_is_more_of_it(
    usual: int, left: int, counted: int
) -> None:
    """A quantised output has few values, and a wrong one of them may be the poison's byte."""
    (call,) = Block(COPIES, 1).calls()
    have, should = torch.zeros(100, dtype=torch.uint8), torch.ones(100, dtype=torch.uint8)
    have[:left] = poison_of(call.rank)
    should[100 - usual :] = poison_of(call.rank)
    found = wrong_values(call, "out", "equal", have, should, torch.ones(100, dtype=torch.bool))
    assert found.unwritten_elements == counted


def test_booleans_that_were_left_are_told_from_true() -> None:
    """A copy of a boolean makes True of the poison: a kernel that wrote True everywhere was taken for one that wrote
    nothing, and what was left was never counted."""
    block = Block(MARKS, 2)
    left, written = (
        block.candidate_heap.tensor(planned.leaves[RANK]["suppressed"].slot) for planned in block.plan.sets
    )
    left.view(torch.uint8).fill_(poison_of(RANK))
    written.fill_(True)
    for call, output, counted in zip(block.calls(), (left, written), (left.numel() - 1, 0), strict=True):
        have, should = output.clone(), torch.zeros_like(output)
        should.view(-1)[0] = True
        found = wrong_values(call, "suppressed", "equal", have, should, have != should)
        assert (found.wrong_elements, found.unwritten_elements) == (left.numel() - 1, counted)
        assert is_untouched(RANK, contents(call, "suppressed", have), None) is bool(counted)
    for expected in block.expected:
        expected["suppressed"] = torch.zeros_like(left)
    wrong = [mismatch for mismatch in block.found().mismatches if mismatch.output == "suppressed"]
    assert [mismatch.unwritten_elements for mismatch in wrong] == [left.numel(), 0]


def test_elements_of_an_argument_that_are_as_before_are_counted() -> None:
    (call,) = Block(COPIES, 1).calls()
    have, before, should = torch.tensor([1.0, 2.0, 3.0, NAN]), torch.tensor([1.0, 5.0, 3.0, NAN]), torch.full((4,), 3.0)
    mismatch = wrong_values(call, "x", "equal", have, should, have != should, before)
    assert (mismatch.wrong_elements, mismatch.unwritten_elements) == (3, 2)
