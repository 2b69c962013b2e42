"""What a report says of a call's arguments."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.compare.call_words import MAX_ELEMENTS, MAX_VALUE, call_words
from pkb_gym.engine.problem import Problem, Value
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compare.block import RANK, Block

NAN, INF = float("nan"), float("inf")
RESCALE = find_problem("SinkhornKnopp")
SCORES = find_problem("GNNNegativeScoring")
MASKED = find_problem("LoadBalancingLoss")


def words(problem: Problem, own: dict[str, Value], others: dict[str, Value], **changes: object) -> str:
    ax = problem.axes(size="tiny", world_size=2, rank=RANK).replace(**changes)  # type: ignore[arg-type]
    return call_words(problem, ax, RANK, [others, own])


def test_numbers_and_groups_of_the_call_are_named() -> None:
    tensors: dict[str, Value] = {"teacher_output": torch.ones(2, 2), "n_masked_patches_tensor": torch.ones(1)}
    assert words(RESCALE, tensors, tensors, I=0) == "teacher_temp=0.07, n_iterations=0"
    assert words(RESCALE, tensors, tensors, group=((0, 1),)).endswith("n_iterations=3, group of ranks ((0, 1),)")
    long = words(RESCALE, tensors, tensors, group=tuple((rank,) for rank in range(64)))
    assert long.endswith("...") and len(long) < 2 * MAX_VALUE + 20


@pytest.mark.parametrize(
    ("values", "said"), [([NAN, 1.0], " with NaN"), ([INF, 1.0], " with infinities"), ([NAN, -INF], " with NaN and")]
)
def test_values_that_are_not_finite_are_named_whosever_they_are(values: list[float], said: str) -> None:
    """A kernel that took NaN for small was told no more than the wrong rank."""
    usual: dict[str, Value] = {"local_pos_scores": torch.ones(2), "local_neg_scores": torch.ones(2, 3)}
    assert words(SCORES, usual, usual) == ""
    assert "local_pos_scores" + said in words(SCORES, usual, {**usual, "local_pos_scores": torch.tensor(values)})


def test_a_large_tensor_is_not_searched() -> None:
    usual: dict[str, Value] = {"local_pos_scores": torch.ones(2), "local_neg_scores": torch.ones(2, 3)}
    large = torch.full((1,), NAN).expand(MAX_ELEMENTS + 1)
    assert words(SCORES, {**usual, "local_pos_scores": large}, usual) == ""


def test_tensors_that_are_not_there_or_empty_are_named() -> None:
    given: dict[str, Value] = {"gate_logits": [torch.ones(0, 2)], "attention_mask": None}
    assert "attention_mask=None" in words(MASKED, given, given)
    empty: dict[str, Value] = {"local_pos_scores": torch.ones(0), "local_neg_scores": torch.ones(0, 3)}
    said = words(SCORES, empty, empty)
    assert said == "local_pos_scores without elements, local_neg_scores without elements"


def test_a_mismatch_tells_how_its_call_differed() -> None:
    block = Block(find_problem("UlyssesAllToAll"), 3)
    block.output(2).add_(1)
    (mismatch,) = block.found().mismatches
    assert mismatch.called_with.startswith("scatter_dim=")
    assert str(mismatch).endswith(f"; called with {mismatch.called_with}")
