"""The data arguments of one trial, drawn by the problem's functions and compared with its declaration."""

from __future__ import annotations

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem.axes import Axes
from pkb_gym.engine.problem.drawn_together import DrawnTogether
from pkb_gym.engine.problem.inputs import InputMaker, TrialKey
from pkb_gym.engine.problem.problem import Problem
from pkb_gym.engine.problem.tensors import check_value
from pkb_gym.engine.problem.values import Value, tensors_made_on


def make_inputs(
    problem: Problem,
    ax: Axes,
    trial_key: TrialKey,
    protocol: str,
    device: str = "cpu",
    together: DrawnTogether | None = None,
) -> tuple[Value, ...]:
    """This rank's data arguments of one trial, in declared order, compared with their declaration.

    Tensors that the problem's function makes without saying where are made on the device as well.

    Args:
        problem: Declaration of the problem.
        ax: Axes of this rank in the trial.
        trial_key: Key of the trial.
        protocol: "robust" or "published".
        device: Name of the device in torch.
        together: Numbers that the timed calls of a block draw together; None where each draws its own.

    Raises:
        DeclarationError: a value does not have the declared kind, shape or dtype.
    """
    maker = InputMaker(problem, ax, trial_key, device, together)
    inputs = problem.trials(protocol).inputs
    with tensors_made_on(device):
        values = inputs(maker)
    if len(values) != len(problem.data_args):
        names = ", ".join(arg.name for arg in problem.data_args)
        raise DeclarationError(f"{problem.name}: inputs gave {len(values)} values for {names}")
    for arg, value in zip(problem.data_args, values, strict=True):
        check_value(problem.name, arg, value, ax)
    return values
