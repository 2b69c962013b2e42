"""Each problem's rules: they distinguish wrong answers from the truth, and declare whether they can be vectorised.

A tolerance too wide, or an output too constant, fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.rules import Check, CheckContext
from pkb_gym.engine.reference.handover_script import POISON
from pkb_gym.problems.catalogue import catalogue
from tests.problems.support import Run, run_reference
from tests.whole_tables import sampled

WORLD_SIZE, TRIALS = 2, 3
MORE_THAN_TIES = {"GNNNegativeScoring": 10}
"""Problem -> step of a whole number that is wrong in every order of ties."""

Outputs = list[dict[str, torch.Tensor]]
Mutation = Callable[[Run, Run], Outputs]


@cache
def reference_run(name: str, trial: int) -> Run:
    return run_reference(name, size="tiny", world_size=WORLD_SIZE, trial=trial)


def zeros(run: Run, _: Run) -> Outputs:
    return [{leaf: torch.zeros_like(value) for leaf, value in outputs.items()} for outputs in run.outputs]


def mean_of_expected(run: Run, _: Run) -> Outputs:
    return [{leaf: flattened(value) for leaf, value in outputs.items()} for outputs in run.outputs]


def flattened(value: torch.Tensor) -> torch.Tensor:
    """Every element the mean of all."""
    if not value.numel():
        return value
    wide = (value if value.is_complex() else value.double()).nan_to_num(0, 0, 0)
    return wide.mean().to(value.dtype).expand(value.shape)


def previous_trial(run: Run, previous: Run) -> Outputs:
    """Stale answers, cut or repeated to the new shapes."""
    return [
        {leaf: fitted(before.get(leaf, value), value) for leaf, value in outputs.items()}
        for outputs, before in zip(run.outputs, previous.outputs, strict=True)
    ]


def fitted(stale: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if not stale.numel() or not value.numel():
        return torch.zeros_like(value)
    repeats = -(-value.numel() // stale.numel())
    return stale.flatten().repeat(repeats)[: value.numel()].view(value.shape)


def last_rank_untouched(run: Run, _: Run) -> Outputs:
    """The last rank's outputs stay as they were: poisoned, or as the argument was before the call."""
    last = {leaf: untouched(run, leaf, value) for leaf, value in run.outputs[-1].items()}
    return [*run.outputs[:-1], last]


def untouched(run: Run, leaf: str, value: torch.Tensor) -> torch.Tensor:
    before = run.args[-1].get(leaf.split("[")[0])
    if isinstance(before, list):
        before = before[int(leaf.split("[")[1][:-1])]
    if isinstance(before, torch.Tensor) and before.shape == value.shape:
        return before
    poison = torch.full((value.numel() * value.element_size(),), POISON, dtype=torch.uint8)
    return poison.view(torch.uint8 if value.dtype == torch.bool else value.dtype).view(value.shape).to(value.dtype)


WRONG: list[Mutation] = [zeros, mean_of_expected, previous_trial, last_rank_untouched]


def marked(run: Run, outputs: Outputs) -> int:
    """Elements that the problem's own rules mark, over all ranks and leaves."""
    return sum(
        int(run.wrong(rank, leaf, value).sum()) for rank, leaves in enumerate(outputs) for leaf, value in leaves.items()
    )


def runs(problem: Problem) -> list[tuple[Run, Run]]:
    """Each trial and the one before; a single one may happen to be empty."""
    return [(reference_run(problem.name, trial), reference_run(problem.name, trial - 1)) for trial in range(1, TRIALS)]


@pytest.fixture(scope="module", autouse=True)
def forget_runs() -> Iterator[None]:
    yield
    reference_run.cache_clear()


@pytest.mark.parametrize("problem", sampled(catalogue(), 3), ids=lambda problem: problem.name)
def test_the_truth_passes_and_a_wrong_answer_does_not(problem: Problem) -> None:
    for run, _ in runs(problem):
        run.assert_passes_own_checks()
    for wrong in WRONG:
        if wrong is mean_of_expected and all(is_scalar(run) for run, _ in runs(problem)):
            continue  # a single number is its own mean
        found = sum(marked(run, wrong(run, previous)) for run, previous in runs(problem))
        assert found, f"{problem.name} accepts {wrong.__name__}"


def is_scalar(run: Run) -> bool:
    return all(value.numel() <= 1 for outputs in run.outputs for value in outputs.values())


@pytest.mark.parametrize("problem", sampled(catalogue(), 3, 1), ids=lambda problem: problem.name)
def test_one_element_off_is_found(problem: Problem) -> None:
    """On every rank and in every compared output."""
    run, _ = runs(problem)[0]
    for rank, outputs in enumerate(run.outputs):
        for leaf, value in outputs.items():
            owner = next(out for out in problem.outputs if out.name == leaf.split("[")[0])
            if value.numel() and owner.check is not None:
                changed = one_element_off(value, MORE_THAN_TIES.get(problem.name, 1))
                assert run.wrong(rank, leaf, changed).any(), f"{problem.name}: rank {rank}, {leaf}"


def one_element_off(value: torch.Tensor, step: int) -> torch.Tensor:
    """The last element moved: by a few times the largest of all, whole numbers by `step`, or the other truth value."""
    changed = value.contiguous().clone()
    last = changed.view(-1)[-1:]
    if value.dtype == torch.bool:
        last.logical_not_()
    elif value.is_complex():
        last.add_(4 * value.abs().max() + 1)
    elif value.is_floating_point():
        size = value.double().abs().nan_to_num(0, 0, 0).max().item()
        last.fill_(min(4 * size + 1, torch.finfo(value.dtype).max))
    else:
        last.add_(step)
    return changed


def rules_of(problem: Problem, leaf: str) -> list[Check]:
    """Of both protocols."""
    out = next(out for out in problem.outputs if out.name == leaf.split("[")[0])
    return [rule for rule in (out.check, out.published) if rule is not None]


def twice(value: Any) -> Any:
    """Tensors of two calls, as one with a dimension more."""
    if isinstance(value, dict):
        return {key: twice(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(twice(part) for part in value)
    return None if value is None else torch.stack([value, value])


def dims(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: dims(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(dims(part) for part in value)
    return None if value is None else 0


def can_be_vectorised(rule: Check, run: Run, rank: int, leaf: str) -> bool:
    def wrong_of_one(args: list[dict[str, Any]], outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        context = CheckContext(run.axes[rank], outputs[leaf], args, outputs, outputs, leaf)
        return rule.wrong(outputs[leaf], context).sum()

    inputs = twice(run.args), twice(run.outputs[rank])
    try:
        torch.vmap(wrong_of_one, in_dims=dims(inputs))(*inputs)
    except RuntimeError as error:
        assert "vmap" in str(error) or "Batch" in str(error), error
        return False
    return True


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # an operator that torch vectorises by a loop
@pytest.mark.parametrize("problem", sampled(catalogue(), 3, 2), ids=lambda problem: problem.name)
def test_a_rule_declares_whether_it_can_be_vectorised(problem: Problem) -> None:
    """One that says it can and cannot is an error at the first evaluation; one that could and does not is slow."""
    run, _ = runs(problem)[0]
    for leaf in run.outputs[0]:
        for rule in rules_of(problem, leaf):
            found = [
                can_be_vectorised(rule, run, rank, leaf) for rank in range(WORLD_SIZE) if leaf in run.outputs[rank]
            ]
            assert rule.batched is all(found), f"{problem.name}, {leaf}: {rule.describe()}"
