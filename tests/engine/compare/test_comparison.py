"""Comparing a rank's outputs with the baseline's, on two heaps of the tests' own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pkb_gym.engine.compare import check, comparison
from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import TOGETHER, RankCheck
from pkb_gym.engine.compare.comparison import Comparison, alike
from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.problem import Problem, rules
from pkb_gym.engine.problem.rules import CheckContext
from pkb_gym.engine.problem.vectorised_view import is_vectorised
from pkb_gym.engine.wire.orders import Claim
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compare.block import CALLS, COPIES, RANK, Block

OVERWRITES = find_problem("VocabParallelCrossEntropy")
"""Its logits are overwritten; what they become is a result, which the published benchmark does not look at."""
SIZED_BY_DATA = find_problem("UlyssesAllGatherVariable")


@pytest.fixture
def block() -> Block:
    return Block(COPIES, CALLS)


def judged_by(rule: rules.Check) -> Problem:
    """`COPIES` with another rule for its output."""
    (output,) = COPIES.outputs
    return dataclasses.replace(COPIES, outputs=(dataclasses.replace(output, check=rule),))


def test_only_wrong_outputs_are_described(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[int] = []
    describe = comparison.wrong_values

    def noting(call: Call, *rest: Any) -> Any:
        described.append(call.plan.trial)
        return describe(call, *rest)

    monkeypatch.setattr(comparison, "wrong_values", noting)
    for call in (1, TOGETHER + 1):
        block.output(call).add_(100)
    found = block.found()
    assert described == [1, TOGETHER + 1], "to describe one, the device is waited for"
    assert [mismatch.trial for mismatch in found.mismatches] == described


def test_alike_calls_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def noting(calls: Any) -> Comparison:
        compared.append(len(calls))
        return Comparison(calls)

    monkeypatch.setattr(check, "Comparison", noting)
    block = Block(COPIES, 7)
    room = comparison.BATCH_BYTES["cpu"] // block.plan.sets[0].nbytes
    assert room >= 7, "else this tests nothing"
    assert block.found().mismatches == ()
    block.output(5).add_(1)
    assert [mismatch.trial for mismatch in block.found().mismatches] == [5]
    assert compared == [7, 7]


def seen_by(batched: bool) -> tuple[rules.Check, list[bool]]:
    """A rule that finds nothing wrong, and of each time it was asked whether it was asked of many calls at once."""
    seen: list[bool] = []

    def mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        seen.append(is_vectorised(got))
        return got != got

    return rules.rule(mark, description="anything", batched=batched), seen


def test_a_rule_is_vectorised_over_alike_calls() -> None:
    rule, seen = seen_by(batched=True)
    assert Block(judged_by(rule), 3).found().mismatches == ()
    assert seen == [True]


def test_a_rule_that_cannot_be_vectorised_is_asked_of_each_call() -> None:
    rule, seen = seen_by(batched=False)
    assert Block(judged_by(rule), 3).found().mismatches == ()
    assert seen == [False] * 3


@pytest.mark.parametrize("batched", [True, False])
def test_a_wrong_output_is_found_either_way(batched: bool) -> None:
    rule = rules.rule(lambda got, context: got != context.expected, description="equal", batched=batched)
    block = Block(judged_by(rule), 3)
    block.output(1).view(-1)[7] += 1
    (mismatch,) = block.found().mismatches
    assert (mismatch.trial, mismatch.wrong_elements, mismatch.rule) == (1, 1, "equal")


def asks_for_a_value(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    return got != context.expected if got.sum().item() else got == got


@pytest.mark.parametrize(
    "wrap", [lambda rule: rule, lambda rule: rules.all_of((rules.exact(), rule))], ids=["alone", "beside another"]
)
def test_a_rule_that_is_wrongly_called_batched_raises(wrap: Callable[[rules.Check], rules.Check]) -> None:
    """It was compared call by call instead, in silence, and blocks took dozens of times as long."""
    with pytest.raises(RuntimeError, match="vmap"):
        Block(judged_by(wrap(rules.rule(asks_for_a_value, description="equal"))), 3).found()
    assert (
        Block(judged_by(wrap(rules.rule(asks_for_a_value, description="equal", batched=False))), 3).found().mismatches
        == ()
    )


def test_an_error_of_a_rule_is_not_swallowed() -> None:
    def fails(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        raise ZeroDivisionError

    for calls in (1, 3):
        with pytest.raises(ZeroDivisionError):
            Block(judged_by(rules.rule(fails, description="nothing")), calls).found()


def test_no_more_is_compared_together_than_memory_allows(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = block.plan.sets[0].nbytes
    monkeypatch.setitem(comparison.BATCH_BYTES, "cpu", 3 * nbytes + 1)
    assert [len(run) for run in alike(list(block.calls())[:8])] == [3, 3, 2]
    monkeypatch.setitem(comparison.BATCH_BYTES, "cpu", nbytes - 1)
    assert [len(run) for run in alike(list(block.calls())[:3])] == [1, 1, 1]


def test_calls_that_have_nothing_but_empty_tensors_are_right() -> None:
    empty = Block(find_problem("SampleSort"), 3, {"counts": 0})
    leaves = [placed.leaf for planned in empty.plan.sets for placed in planned.leaves[RANK].values()]
    assert {leaf.capacity_bytes for leaf in leaves} == {0}
    assert empty.found() == RankCheck(rank=RANK, outputs=3, elements=0, elements_right=0, mismatches=())


def test_calls_that_differ_are_compared_apart(block: Block) -> None:
    block.claims[2] = {"out": Claim((1,), "float32")}
    assert [len(run) for run in alike(list(block.calls())[:6])] == [2, 1, 3]
    planned = Workload(SIZED_BY_DATA, "tiny", 2, "bfloat16", "robust", b"key", 0, 0).plan([0], False, 0).sets[0]
    by_data = 3 * [Call(SIZED_BY_DATA, planned, RANK, "robust", {}, block.reference_heap, block.candidate_heap, {})]
    assert [len(run) for run in alike(by_data)] == [1, 1, 1], "each may have a size of its own"


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
    ("claim", "got"), [(Claim((1,), "bfloat16"), "(1,) bfloat16"), (Claim((), "nonsense"), "() nonsense")]
)
def test_a_claim_that_differs_is_a_mismatch_and_nothing_is_read(block: Block, claim: Claim, got: str) -> None:
    (name,) = block.expected[5]
    block.claims[5] = {name: claim}
    size = block.output(5).numel()
    found = block.found()
    (mismatch,) = found.mismatches
    assert (mismatch.trial, mismatch.reason, mismatch.got) == (5, "shape_or_dtype", got)
    assert mismatch.wrong_elements == size
    assert (found.outputs, found.elements_right) == (CALLS, found.elements - size)


def test_a_claim_as_declared_is_compared_by_values(block: Block) -> None:
    (name,) = block.expected[5]
    output = block.output(5)
    block.claims[5] = {name: Claim(tuple(output.shape), str(output.dtype).removeprefix("torch."))}
    assert block.found().mismatches == ()
    output.view(-1)[0] += 100
    assert [mismatch.reason for mismatch in block.found().mismatches] == ["values"]


def test_the_published_protocol_has_rules_of_its_own(block: Block) -> None:
    first = block.output(3).view(-1)[12 - 3 :][:1]
    assert first.tolist() == [12.0]
    first.fill_(12.0625)
    assert [mismatch.trial for mismatch in block.found("robust").mismatches] == [3]
    assert block.found("published").mismatches == ()
