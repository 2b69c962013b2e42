"""Numbers that several timed calls draw together: of each call its own, whatever was drawn before."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pkb_gym.engine.problem import drawn_together
from pkb_gym.engine.problem.axes import Axes
from pkb_gym.engine.problem.drawn_together import CALLS_DRAWN_TOGETHER, DrawnTogether
from pkb_gym.engine.problem.inputs import Draw, InputMaker, TrialKey
from pkb_gym.engine.problem.sum_rules import of_many_sizes
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
NAME = PROBLEM.data_args[0].name
KEY = TrialKey(b"key", 0, PROBLEM.name, 0, 0, timed=True)
DRAWS: dict[str, Callable[[InputMaker], torch.Tensor]] = {
    "normal": lambda make: make.normal(NAME),
    "uniform": lambda make: make.uniform(NAME, 1.0, 2.0),
    "integers": lambda make: make.integers(NAME, 0, 1000),
    "bits": lambda make: make.bits(NAME),
    "randn": lambda make: make.randn(40, 3),
    "rand": lambda make: make.rand(40, 3),
    "randint": lambda make: make.randint(0, 1000, 40, 3),
    "of many sizes": lambda make: of_many_sizes(make, NAME),
    "shared": lambda make: make.shared.normal(NAME),
    "keyed": lambda make: make.stream("group", 1).normal(NAME),
    "the second": lambda make: (make.normal(NAME), make.normal(NAME))[1],
}


def axes(rank: int = 1) -> Axes:
    with PROBLEM.fitting_axes("tiny"):
        varied = PROBLEM.varied_axes("tiny", 2, "bfloat16", "robust", Draw(KEY))
        return PROBLEM.derived_axes(varied, rank)


def drawn(
    draw: Callable[[InputMaker], torch.Tensor], trial: int, together: DrawnTogether | None, rank: int = 1
) -> torch.Tensor:
    return draw(InputMaker(PROBLEM, axes(rank), replace(KEY, trial=trial), together=together)).clone()


def bits(values: torch.Tensor) -> bytes:
    return values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_trial_has_its_numbers_in_whatever_order_trials_are_drawn(draw: Callable[[InputMaker], torch.Tensor]) -> None:
    """The inputs of a timed block are made again, in another order, where its outputs were wrong."""
    trials = range(2 * CALLS_DRAWN_TOGETHER + 3)
    together, backwards = DrawnTogether(), DrawnTogether()
    values = [bits(drawn(draw, trial, together)) for trial in trials]
    assert values == [bits(drawn(draw, trial, backwards)) for trial in reversed(trials)][::-1]
    assert values[5] == bits(drawn(draw, 5, DrawnTogether()))
    assert len(set(values)) == len(trials), "fresh in each call"


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_numbers_are_distributed_as_those_of_a_single_call(draw: Callable[[InputMaker], torch.Tensor]) -> None:
    together = DrawnTogether()
    values = torch.stack([drawn(draw, trial, together) for trial in range(64)])
    alone = torch.stack([drawn(draw, trial, None) for trial in range(64)])
    assert values.dtype == alone.dtype and values.shape == alone.shape and not values.isnan().all()
    if draw is not DRAWS["bits"]:
        for quantile in (0.1, 0.5, 0.9):
            levels = [torch.quantile(one.double().flatten()[:100_000], quantile) for one in (values, alone)]
            assert torch.isclose(*levels, rtol=0.05, atol=0.05 * float(alone.double().std()))


def test_ranks_share_what_they_share_and_nothing_else() -> None:
    makers = [DrawnTogether(), DrawnTogether()]
    for name in ("shared", "keyed"):
        assert torch.equal(*(drawn(DRAWS[name], 3, makers[rank], rank) for rank in (0, 1)))
    assert not torch.equal(*(drawn(DRAWS["normal"], 3, makers[rank], rank) for rank in (0, 1)))


def test_streams_and_draws_of_one_shape_differ() -> None:
    together = DrawnTogether()
    values = [drawn(DRAWS[name], 3, together) for name in ("normal", "shared", "keyed", "the second")]
    assert len({bits(value) for value in values}) == len(values)


def test_checked_calls_draw_their_own_and_published_seeds_are_kept() -> None:
    together = DrawnTogether()
    checked = [InputMaker(PROBLEM, axes(), replace(KEY, timed=False), together=one) for one in (together, None)]
    assert torch.equal(*(maker.normal(NAME) for maker in checked))
    seeded = [InputMaker(PROBLEM, axes(), replace(KEY, trial=4), together=one).seeded(7) for one in (together, None)]
    assert torch.equal(*(stream.normal(NAME) for stream in seeded))


def test_large_tensors_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[tuple[int, ...]] = []

    def fill(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        filled.append(shape)
        return torch.rand(shape, generator=generator)

    monkeypatch.setitem(drawn_together.BYTES_DRAWN_TOGETHER, "cpu", 5 * 4 * 10)
    for shape in ((10,), (11,), (60,)):
        together = DrawnTogether()
        for trial in range(4):
            together.of_trial(trial, lambda first, _: first, "cpu", ("rank", 1), shape, torch.float32, fill)
    assert filled == [(4, 10), (4, 11), (1, 60), (1, 60), (1, 60), (1, 60)]


def test_numbers_are_let_go_of_where_no_other_call_has_them_and_once_all_are_drawn() -> None:
    """Makers of inputs stay until they are collected, and a tensor may take much of a GPU."""
    together, drawn_ones = DrawnTogether(), []

    def fill(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        values = torch.rand(shape, generator=generator)
        drawn_ones.append(weakref.ref(values))
        return values

    for elements in (4, drawn_together.BYTES_DRAWN_TOGETHER["cpu"]):
        together.of_trial(0, lambda first, _: first, "cpu", ("rank", 1), (elements,), torch.float32, fill)
    assert [one() is None for one in drawn_ones] == [False, True]
    together.forget()
    assert [one() is None for one in drawn_ones] == [True, True]
