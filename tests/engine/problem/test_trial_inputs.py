"""Where the tensors of a trial are made, and how many calls of torch are looked at for that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pkb_gym.engine.problem import trial_inputs
from pkb_gym.engine.problem.inputs import Draw, InputMaker, TrialKey
from pkb_gym.engine.problem.sum_rules import of_many_sizes
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.problem.values import tensors_made_on
from pkb_gym.problems.catalogue import find_problem

KEY = TrialKey(b"key", 0, "AllReduce", 0, 0)


class Looking(TorchFunctionMode):
    """Counts the calls of torch that are looked at while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.looks += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "looks"), [("cpu", 0), ("meta", 1)])
def test_tensors_are_made_on_the_device_and_the_cpu_needs_no_look_at_each(device: str, looks: int) -> None:
    with tensors_made_on(device):
        assert torch.zeros(1).device.type == device
        assert len(torch.overrides._get_current_function_mode_stack()) == looks


def test_calls_are_looked_at_in_the_function_of_the_problem_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing values with their declaration, and sums of many sizes, took a third of the time on GPUs."""
    problem = find_problem("AllReduce")
    with problem.fitting_axes("tiny"):
        ax = problem.derived_axes(problem.varied_axes("tiny", 2, "bfloat16", "robust", Draw(KEY)), 0)
    looking = Looking()
    monkeypatch.setattr(trial_inputs, "tensors_made_on", lambda _: looking)
    (value,) = make_inputs(problem, ax, KEY, "robust")
    assert looking.looks == 0, "draws name the device"
    monkeypatch.undo()
    assert torch.equal(value, make_inputs(problem, ax, KEY, "robust")[0])

    def inputs(maker: InputMaker) -> tuple[torch.Tensor, ...]:
        return (of_many_sizes(maker, problem.data_args[0].name) + torch.zeros(()),)

    monkeypatch.setattr(trial_inputs, "tensors_made_on", lambda _: looking)
    monkeypatch.setattr(type(problem), "trials", lambda *_: SimpleNamespace(inputs=inputs))
    make_inputs(problem, ax, KEY, "robust")
    assert looking.looks == 2, "the zeros and the sum of a problem's own"
