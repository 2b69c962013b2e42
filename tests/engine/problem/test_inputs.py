"""The random streams of inputs, and what is resolved of declarations."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pkb_gym.engine.problem import inputs
from pkb_gym.engine.problem.axes import Axes
from pkb_gym.engine.problem.inputs import RENEWED_PART, InputMaker, Stream, TrialKey
from pkb_gym.engine.problem.recurrence import Recurrence
from pkb_gym.engine.problem.tensors import argument_leaves, output_leaves
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
NAME = PROBLEM.data_args[0].name
KEY = TrialKey(b"key", 0, PROBLEM.name, 0, 0)


@pytest.fixture
def axes() -> Axes:
    with PROBLEM.fitting_axes("tiny"):
        varied = PROBLEM.varied_axes("tiny", 2, "bfloat16", "robust", inputs.Draw(KEY))
        return PROBLEM.derived_axes(varied, 1)


DRAWS: dict[str, Callable[[Stream], torch.Tensor]] = {
    "normal": lambda stream: stream.normal(NAME),
    "uniform": lambda stream: stream.uniform(NAME),
    "integers": lambda stream: stream.integers(NAME, 0, 5),
    "bits": lambda stream: stream.bits(NAME),
    "randn": lambda stream: stream.randn(3),
    "rand": lambda stream: stream.rand(3),
    "randint": lambda stream: stream.randint(0, 5, 3),
    "permutation": lambda stream: stream.permutation(3),
}


class Seen(TorchFunctionMode):
    """Notes every call of torch that a default device would look at."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_no_call_of_a_stream_is_looked_at_for_its_device(draw: Callable[[Stream], torch.Tensor], axes: Axes) -> None:
    expected = draw(InputMaker(PROBLEM, axes, KEY))
    maker = InputMaker(PROBLEM, axes, KEY)
    with torch.device("meta"), Seen() as seen:
        drawn = draw(maker)
        torch.zeros(1)
    assert seen.calls == ["zeros"], "the second is the test's own, to show that calls are seen"
    assert drawn.device.type == "cpu" and torch.equal(drawn.view(torch.uint8), expected.view(torch.uint8))


def test_values_are_drawn_wide_and_rounded_once(axes: Axes, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = InputMaker(PROBLEM, axes, KEY)
    shape, dtype = maker.spec(NAME)
    generator = torch.Generator().manual_seed(KEY.derive_seed("rank", 1))
    wide = torch.empty(shape).normal_(0.5, 2.0, generator=generator)
    assert torch.equal(maker.normal(NAME, 2.0, 0.5), wide.to(dtype))
    monkeypatch.setattr(inputs, "DRAWN_TOGETHER", wide.numel() // 3)
    filled: list[int] = []

    def fill(part: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        filled.append(part.numel())
        return part.fill_(len(filled))

    values = maker._rounded(NAME, ("filled",), fill)
    assert max(filled) <= wide.numel() // 3 and sum(filled) == wide.numel()
    assert values.dtype == dtype and values.flatten()[[0, -1]].tolist() == [1, len(filled)]


def _others() -> Iterator[tuple[TrialKey, tuple[str | int, ...]]]:
    yield KEY, ("rank", 2)
    yield KEY, ("rank1",)
    yield KEY, ("rank", "1")
    for changed in ({"key": b"other"}, {"seed": 1}, {"problem": "Other"}, {"turn": 1}, {"trial": 1}):
        yield replace(KEY, **changed), ("rank", 1)


def test_every_stream_of_every_trial_has_a_seed_of_its_own() -> None:
    seeds = [KEY.derive_seed("rank", 1), *(key.derive_seed(*stream) for key, stream in _others())]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 1 << 63 for seed in seeds)
    assert KEY.derive_seed("rank", 1) == seeds[0]


def test_a_declaration_is_resolved_once_for_the_same_axes(axes: Axes) -> None:
    arg, out = PROBLEM.data_args[0], PROBLEM.returned[0]
    of_arg, of_out = argument_leaves(arg, axes), output_leaves(out, axes)
    assert argument_leaves(arg, axes)[0] is of_arg[0] and output_leaves(out, axes)[0] is of_out[0]
    argument_leaves(arg, axes).clear()
    assert argument_leaves(arg, axes) == of_arg, "each caller has a list of its own"
    larger = axes.replace(M=2 * axes.M)
    assert argument_leaves(arg, larger)[0].capacity == 2 * of_arg[0].capacity
    assert output_leaves(out, larger)[0].capacity == 2 * of_out[0].capacity
    for copied in (axes.replace(), pickle.loads(pickle.dumps(axes))):
        assert copied == axes and not copied.kept_leaves


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Elements of equal bits."""
    bits = [values.contiguous().view(torch.uint8).view(values.numel(), -1) for values in (one, other)]
    return (bits[0] == bits[1]).all(dim=1)


@pytest.mark.parametrize("draw", [draw for name, draw in DRAWS.items() if name != "permutation"])
def test_values_return_but_for_a_part_and_on_one_rank_whole(draw: Callable[[Stream], torch.Tensor], axes: Axes) -> None:
    again = replace(KEY, trial=7, recurrence=Recurrence(values_of=0, whole_rank=0))
    returned = _is_equal(draw(InputMaker(PROBLEM, axes, KEY)), draw(InputMaker(PROBLEM, axes, again)))
    assert returned[0] and returned[-1], "where kernels look that recognise values"
    new = int((~returned).sum())
    assert new <= -(-len(returned) // RENEWED_PART)
    if len(returned) > 3:
        assert new > 0
    whole = replace(again, recurrence=Recurrence(values_of=0, whole_rank=1))
    assert _is_equal(draw(InputMaker(PROBLEM, axes, KEY)), draw(InputMaker(PROBLEM, axes, whole))).all()


def test_what_ranks_share_returns_whole(axes: Axes) -> None:
    again = replace(KEY, trial=7, recurrence=Recurrence(values_of=0, whole_rank=0))
    shared = [InputMaker(PROBLEM, axes, key).shared.randn(100) for key in (KEY, again)]
    keyed = [InputMaker(PROBLEM, axes, key).stream("group").randn(100) for key in (KEY, again)]
    assert torch.equal(*shared) and not torch.equal(*keyed)


def test_a_returning_trial_keeps_its_number(axes: Axes) -> None:
    """Problems choose modes by it."""
    again = replace(KEY, trial=7, recurrence=Recurrence(values_of=0))
    assert InputMaker(PROBLEM, axes, again).trial == 7
