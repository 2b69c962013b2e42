"""Comparing a rank's outputs with the baseline's, on two heaps of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pkb_gym.engine.compare import check, screen
from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import TOGETHER, Comparison, RankCheck, compare_all
from pkb_gym.engine.compare.layout import BlockPlan, Workload, result_slots
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.ranks.heaps import sealed_memory
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.problems.catalogue import find_problem

COPIES = find_problem("AllGather")
"""Its one output must have the same bits; its argument stays as it is."""
OVERWRITES = find_problem("VocabParallelCrossEntropy")
"""Its logits are overwritten; what they become is a result, which the published benchmark does not look at."""
SIZED_BY_DATA = find_problem("UlyssesAllGatherVariable")
CALLS = 2 * TOGETHER + 3
RANK = 1


class Block:
    """Calls of a problem whose outputs are all right, until a test changes something."""

    def __init__(self, problem: Problem, calls: int, size: str | dict[str, AxisValue] = "tiny") -> None:
        self.problem = problem
        workload = Workload(problem, size, 2, problem.dtypes[0], "robust", b"key", 0, 0)
        self.plan: BlockPlan = workload.plan(range(calls), False, 0)
        self.mine, self.theirs = (
            Heap(sealed_memory("test", 2 * self.plan.end), self.plan.end, 2, RANK) for _ in range(2)
        )
        self.expected: list[dict[str, torch.Tensor]] = []
        self.said: list[dict[str, Any]] = [{} for _ in range(calls)]
        for planned in self.plan.sets:
            results = {}
            for number, (_, slot) in enumerate(result_slots(problem, planned, RANK)):
                theirs = self.theirs.tensor(slot.to_json())
                theirs.copy_(torch.arange(theirs.numel()).add(planned.trial + number).remainder(13).view(theirs.shape))
                results[slot.leaf.name] = theirs.clone()
            self.expected.append(results)

    def output(self, call: int) -> torch.Tensor:
        """The candidate's first output of a call."""
        _, slot = result_slots(self.problem, self.plan.sets[call], RANK)[0]
        return self.theirs.tensor(slot.to_json())

    def argument(self, call: int, *, mutable: bool = False) -> torch.Tensor:
        """The candidate's first argument of a call."""
        planned = self.plan.sets[call]
        arg = next(arg for arg in self.problem.data_args if getattr(arg, "mutable", False) is mutable)
        leaf = argument_leaves(arg, planned.axes[RANK])[0]
        return self.theirs.tensor(planned.slots[RANK][leaf.name].to_json())

    def calls(self, protocol: str = "robust") -> Iterator[Call]:
        for planned, expected, said in zip(self.plan.sets, self.expected, self.said, strict=True):
            yield Call(self.problem, planned, RANK, protocol, expected, self.mine, self.theirs, said)

    def found(self, protocol: str = "robust") -> RankCheck:
        return compare_all(RANK, self.calls(protocol))


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


def test_only_wrong_outputs_are_described(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[int] = []
    describe = check._describe

    def noting(trial: int, *rest: Any) -> Any:
        described.append(trial)
        return describe(trial, *rest)

    monkeypatch.setattr(check, "_describe", noting)
    for call in (1, TOGETHER + 1):
        block.output(call).add_(100)
    found = block.found()
    assert described == [1, TOGETHER + 1], "to describe one, the device is waited for"
    assert [mismatch.trial for mismatch in found.mismatches] == described


def test_the_device_is_waited_for_once_for_many_calls(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they hold is let go of before the next are looked at, so that memory does not grow with the calls."""
    made, waits = 0, []
    numbers = check._numbers

    def counting(counts: list[torch.Tensor]) -> list[int]:
        waits.append(made)
        return numbers(counts)

    def counted() -> Iterator[Call]:
        nonlocal made
        for call in block.calls():
            made += 1
            yield call

    monkeypatch.setattr(check, "_numbers", counting)
    assert compare_all(RANK, counted()).outputs == CALLS
    assert waits == [TOGETHER, 2 * TOGETHER, CALLS]


def test_alike_calls_are_looked_at_together(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[int] = []
    monkeypatch.setattr(
        check, "Comparison", lambda call, *rest: alone.append(call.plan.trial) or Comparison(call, *rest)
    )
    assert block.found().mismatches == ()
    assert alone == []
    block.output(5).add_(1)
    assert [mismatch.trial for mismatch in block.found().mismatches] == alone == [5]


def test_no_more_is_looked_at_together_than_memory_allows(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = block.plan.sets[0].nbytes
    monkeypatch.setitem(screen.SCREENED_BYTES, "cpu", 3 * nbytes + 1)
    assert [len(run) for run in screen.alike(list(block.calls())[:8])] == [3, 3, 2]
    monkeypatch.setitem(screen.SCREENED_BYTES, "cpu", nbytes - 1)
    assert [len(run) for run in screen.alike(list(block.calls())[:3])] == [1, 1, 1]


def test_calls_that_have_nothing_but_empty_tensors_are_right() -> None:
    empty = Block(find_problem("SampleSort"), 3, {"counts": 0})
    assert {planned.nbytes for planned in empty.plan.sets} == {0}
    assert empty.found() == RankCheck(rank=RANK, outputs=3, elements=0, elements_right=0, mismatches=())


def test_calls_that_differ_are_looked_at_apart(block: Block) -> None:
    block.said[2] = {"out": {"shape": [1], "dtype": "float32"}}
    assert [len(run) for run in screen.alike(list(block.calls())[:6])] == [2, 1, 3]
    planned = Workload(SIZED_BY_DATA, "tiny", 2, "bfloat16", "robust", b"key", 0, 0).plan([0], False, 0).sets[0]
    by_data = 3 * [Call(SIZED_BY_DATA, planned, RANK, "robust", {}, block.mine, block.theirs, {})]
    assert [len(run) for run in screen.alike(by_data)] == [1, 1, 1], "each may have a size of its own"


def test_what_is_wrong_is_told_of_the_outputs_that_were_looked_at(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert [mismatch.reason for mismatch in block.found().mismatches] == ["input_modified"]


@pytest.mark.parametrize("call", [0, TOGETHER])
def test_a_modified_input_is_found_and_counted_in_elements(block: Block, call: int) -> None:
    argument = block.argument(call).view(-1)
    argument[2] = 1.5
    argument[4] = -0.0
    found = block.found()
    (mismatch,) = found.mismatches
    assert (mismatch.reason, mismatch.trial, mismatch.wrong_elements) == ("input_modified", call, 2)
    assert mismatch.elements == argument.numel()
    assert found.elements_right == found.elements, "the outputs are right all the same"


def test_a_modified_input_and_a_wrong_output_of_one_call(block: Block) -> None:
    block.argument(4).view(-1)[0] = 1
    block.output(4).view(-1)[0] += 100
    assert [(m.trial, m.reason) for m in block.found().mismatches] == [(4, "input_modified"), (4, "values")]


@pytest.mark.parametrize(("protocol", "found"), [("robust", [("vocab_parallel_logits", "values")]), ("published", [])])
def test_what_may_be_overwritten_is_a_result(protocol: str, found: list[tuple[str, str]]) -> None:
    block = Block(OVERWRITES, 2)
    assert block.found(protocol).mismatches == ()
    block.argument(1, mutable=True).view(-1)[0] += 100
    assert [(mismatch.output, mismatch.reason) for mismatch in block.found(protocol).mismatches] == found


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ({"shape": [1], "dtype": "bfloat16"}, "(1,) bfloat16"),
        ({"shape": [], "dtype": "nonsense"}, "() nonsense"),
    ],
)
def test_a_claim_that_differs_is_a_mismatch_and_nothing_is_read(
    block: Block, said: dict[str, Any], got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = block.expected[5]
    block.said[5] = {name: said}
    size = block.output(5).numel()
    found = block.found()
    (mismatch,) = found.mismatches
    assert (mismatch.trial, mismatch.reason, mismatch.got) == (5, "shape_or_dtype", got)
    assert mismatch.wrong_elements == size
    assert (found.outputs, found.elements_right) == (CALLS, found.elements - size)


def test_a_claim_as_declared_is_compared_by_values(block: Block) -> None:
    (name,) = block.expected[5]
    output = block.output(5)
    block.said[5] = {name: {"shape": list(output.shape), "dtype": str(output.dtype).removeprefix("torch.")}}
    assert block.found().mismatches == ()
    output.view(-1)[0] += 100
    assert [mismatch.reason for mismatch in block.found().mismatches] == ["values"]


@pytest.mark.parametrize(
    ("claim", "got"),
    [
        (None, "() nothing"),
        ({"shape": [2, 3], "dtype": "bfloat16"}, None),
        ({"shape": [3, 2], "dtype": "bfloat16"}, "(3, 2) bfloat16"),
        ({"shape": [2, 3], "dtype": "float32"}, "(2, 3) float32"),
        ({"shape": [1 << 39], "dtype": "bfloat16"}, f"({1 << 39},) bfloat16"),
    ],
)
def test_a_size_that_depends_on_the_data_must_be_claimed(claim: dict[str, Any] | None, got: str | None) -> None:
    workload = Workload(SIZED_BY_DATA, "tiny", 2, "bfloat16", "robust", b"key", 0, 0)
    planned = workload.plan([0], False, 0).sets[0]
    ((_, slot),) = result_slots(SIZED_BY_DATA, planned, RANK)
    mismatch = check._shape_mismatch(0, RANK, slot, claim, torch.ones(2, 3, dtype=torch.bfloat16))
    assert (None if mismatch is None else mismatch.got) == got


def test_the_published_protocol_has_rules_of_its_own(block: Block) -> None:
    first = block.output(3).view(-1)[12 - 3 :][:1]
    assert first.tolist() == [12.0]
    first.fill_(12.0625)
    assert [mismatch.trial for mismatch in block.found("robust").mismatches] == [3]
    assert block.found("published").mismatches == ()


def test_no_calls_at_all() -> None:
    assert compare_all(3, []) == RankCheck(rank=3, outputs=0, elements=0, elements_right=0, mismatches=())
