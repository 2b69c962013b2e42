"""Outputs that a kernel without any work gets right, and what a wrong kernel has earned."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pkb_gym.engine.compare import check
from pkb_gym.engine.compare.check import RankCheck, merge
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.compare.trivial import parts_of, tensors_of, without_work
from pkb_gym.engine.problem import exact
from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compare.block import COPIES, RANK, Block
from tests.engine.records.mismatches import mismatch


def earned(*ranks: tuple[list[int], list[int]]) -> CheckReport:
    """The report of a gang, from each rank's calls that can be earned and those that are wrong there."""
    checks = []
    for rank, (earnable, wrong) in enumerate(ranks):
        found: tuple[Mismatch, ...] = tuple(
            mismatch(trial=trial, rank=rank, output="out", unwritten_elements=0) for trial in wrong
        )
        checks.append(
            RankCheck(
                rank=rank,
                outputs=4,
                elements=32,
                elements_right=16,
                mismatches=found,
                earnable=tuple((trial, "out") for trial in earnable),
                untouched=False,
            )
        )
    return merge(checks, trials=4)


def test_an_output_is_earned_where_it_is_right_on_every_rank() -> None:
    """Calls 0 to 3: wrong on rank 0, on rank 1, on none, on none, but trivial on both."""
    report = earned(([0, 1, 2], [0]), ([0, 1, 2], [1]))
    assert report.earned_share == pytest.approx(1 / 3)
    assert not report.nothing_written


def test_what_is_trivial_on_one_rank_alone_can_be_earned() -> None:
    """As the root's own data in a broadcast: the root looks right whatever the kernel does."""
    assert earned(([], []), ([0, 1, 2, 3], [0, 1, 2])).earned_share == 0.25
    assert earned(([], [0]), ([], [])).earned_share == 0.0, "nothing could be earned"


def test_a_right_submission_is_told_nothing_and_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object, index: int) -> None:
        raise AssertionError("looked at a right submission")

    monkeypatch.setattr("pkb_gym.engine.compare.comparison.Comparison.earnable", refused)
    found = Block(COPIES, 3).found()
    report = merge([found], trials=3)
    assert (found.earnable, report.earned_share, report.nothing_written) == ((), None, False)


def test_calls_of_a_wrong_block_are_looked_at_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_EARNING_CALLS", 3)
    block = Block(COPIES, 5)
    block.output(1).add_(100)
    found = block.found()
    assert [trial for trial, _ in found.earnable] == [0, 1, 2]
    assert merge([found], trials=5).earned_share == pytest.approx(2 / 3)


def test_outputs_that_a_rank_makes_alone_and_calls_without_a_link_earn_nothing() -> None:
    (output,) = COPIES.outputs
    alone = dataclasses.replace(COPIES, outputs=(dataclasses.replace(output, is_local=True),))
    silent = dataclasses.replace(
        COPIES, cost=lambda ax: dataclasses.replace(COPIES.cost(ax), link_in_bytes=0, link_out_bytes=0)
    )
    for problem in (alone, silent):
        block = Block(problem, 2)
        block.output(1).add_(100)
        assert block.found().earnable == (), problem


def test_zeros_and_own_arguments_earn_nothing() -> None:
    """Expected are zeros in call 0, and the own argument in call 1, of a problem whose output is as large as it."""
    summed = find_problem("AllReduce")
    (output,) = summed.outputs  # compared as it is, not with the sum of the arguments
    block = Block(dataclasses.replace(summed, outputs=(dataclasses.replace(output, check=exact()),)), 4)
    slot = next(iter(block.plan.sets[1].leaves[RANK].values())).slot
    own = torch.arange(block.output(1).numel()).view(block.output(1).shape).remainder(7)
    block.reference_heap.tensor(slot, RANK).copy_(own)
    block.candidate_heap.tensor(slot, RANK).copy_(own)
    for call, expected in ((0, torch.zeros_like(own)), (1, own)):
        block.output(call).copy_(expected)
        block.expected[call] = {name: block.output(call).clone() for name in block.expected[call]}
    block.output(3).add_(100)
    assert [trial for trial, _ in block.found().earnable] == [2, 3]


def test_nothing_is_written_where_every_wrong_output_is_as_it_was() -> None:
    block = Block(COPIES, 3)
    for call in (0, 2):
        block.output(call).view(-1).view(torch.uint8).fill_(poison_of(RANK))
    found = block.found()
    assert found.untouched and len(found.mismatches) == 2
    nothing = found.model_copy(update={"earnable": ((0, "out"), (2, "out"))})
    assert merge([nothing], trials=3).nothing_written
    assert not merge([found], trials=3).nothing_written, "call 1 was earned"
    assert not merge([nothing, nothing.model_copy(update={"rank": 0, "untouched": False})], trials=3).nothing_written


def test_a_kernel_that_leaves_out_one_element_has_written() -> None:
    block = Block(COPIES, 2)
    for call in (0, 1):
        block.output(call).view(-1)[-1:].view(torch.uint8).fill_(poison_of(RANK))
    found = block.found()
    assert all(one.unwritten_elements == one.wrong_elements == 1 for one in found.mismatches)
    assert not found.untouched and not merge([found], trials=2).nothing_written


def test_a_record_without_the_fields_reads_as_one_that_earned_nothing() -> None:
    older = earned(([0, 1], [0])).model_dump(exclude={"earned_share", "nothing_written"})
    report = CheckReport.model_validate(older)
    assert (report.earned_share, report.nothing_written) == (None, False)


def test_parts_of_an_argument_are_the_whole_and_shares_along_each_dimension() -> None:
    argument, output = torch.arange(8.0).view(2, 4), torch.zeros(4)
    parts = [part.tolist() for part in parts_of(argument, output, rank=1, world_size=2)]
    assert [4, 5, 6, 7] in parts and [2, 3, 6, 7] in parts and [0, 1, 2, 3] in parts
    assert [part.tolist() for part in parts_of(argument, torch.zeros(4, 2), rank=0, world_size=2)] == [
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    ]
    assert list(parts_of(argument, torch.zeros(3), rank=0, world_size=2)) == []
    values = {"a": argument, "b": [None, output], "c": (argument, None), "d": None}
    assert [tensor.numel() for tensor in tensors_of(values)] == [8, 4, 8]


def test_kernels_without_work_leave_poison_or_the_argument_or_a_constant() -> None:
    expected = {"out": torch.zeros(3, dtype=torch.uint8), "x": torch.zeros(2)}
    before, zeros, ones = without_work(expected, {"x": torch.tensor([5.0, 6.0])}, rank=1)
    assert before["out"].tolist() == [0xF4] * 3 and before["x"].tolist() == [5.0, 6.0]
    assert not zeros["out"].any() and bool(ones["x"].all())
