"""One report of all calls and ranks, and how often the device is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pkb_gym.engine.compare import check
from pkb_gym.engine.compare.check import MAX_MISMATCHES, TOGETHER, RankCheck, compare_all, merge
from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from tests.engine.compare.block import CALLS, COPIES, RANK, Block
from tests.engine.records.mismatches import mismatch


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


@pytest.fixture
def block() -> Block:
    return Block(COPIES, CALLS)


def test_right_outputs_of_many_calls(block: Block) -> None:
    size = block.output(0).numel()
    assert block.found() == RankCheck(
        rank=RANK, outputs=CALLS, elements=CALLS * size, elements_right=CALLS * size, mismatches=()
    )


@pytest.mark.parametrize("call", [0, TOGETHER - 1, TOGETHER, 2 * TOGETHER, CALLS - 1])
def test_the_one_wrong_call_is_named(block: Block, call: int) -> None:
    output = block.output(call).view(-1)
    output[3] += 100
    output[5] = float("nan")
    found = block.found()
    (mismatch,) = found.mismatches
    assert (mismatch.trial, mismatch.rank, mismatch.reason) == (call, RANK, "values")
    assert (mismatch.wrong_elements, mismatch.elements) == (2, output.numel())
    assert mismatch.got == "nan", "it is worse than any number"
    assert (found.outputs, found.elements) == (CALLS, CALLS * output.numel())
    assert found.elements_right == found.elements - 2


def test_the_device_is_waited_for_once_for_many_calls(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they hold is let go of before the next are compared, so that memory does not grow with the calls."""
    made, waits = 0, []
    numbers = check._numbers

    def counting(counts: list[torch.Tensor]) -> list[int]:
        waits.append(made)
        return numbers(counts)

    def counted() -> Iterator[Any]:
        nonlocal made
        for call in block.calls():
            made += 1
            yield call

    monkeypatch.setattr(check, "_numbers", counting)
    assert compare_all(RANK, counted()).outputs == CALLS
    assert waits == [TOGETHER, 2 * TOGETHER, CALLS]


def test_an_output_is_described_as_it_was_compared(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU goes on when its process is frozen: an output may change between two looks."""
    right = block.output(5).clone()
    block.output(5).add_(100)
    numbers = check._numbers

    def putting_right(counts: list[torch.Tensor]) -> list[int]:
        block.output(5).copy_(right)
        return numbers(counts)

    monkeypatch.setattr(check, "_numbers", putting_right)
    assert [mismatch.trial for mismatch in block.found().mismatches] == [5]


def test_an_argument_that_was_changed_stays_so(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    right = block.argument(5).clone()
    block.argument(5).view(-1)[0] += 1
    numbers = check._numbers

    def putting_right(counts: list[torch.Tensor]) -> list[int]:
        block.argument(5).copy_(right)
        return numbers(counts)

    monkeypatch.setattr(check, "_numbers", putting_right)
    (mismatch,) = block.found().mismatches
    assert (mismatch.reason, mismatch.wrong_elements) == ("input_modified", 1)


def test_no_calls_at_all() -> None:
    assert compare_all(3, []) == RankCheck(rank=3, outputs=0, elements=0, elements_right=0, mismatches=())
