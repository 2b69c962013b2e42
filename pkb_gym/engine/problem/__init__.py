"""The declaration of a problem: what a `problem.py` imports.

Imports no torch, so that the whole catalogue loads at once, and nothing of the engine but `support` and `errors`.
"""

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem.arguments import (
    Argument,
    Group,
    InPlace,
    Linear,
    Output,
    OutputList,
    Result,
    Scalar,
    Sparse,
    Tensor,
    TensorList,
)
from pkb_gym.engine.problem.axes import ITEMSIZE, Axes, AxisValue, divide
from pkb_gym.engine.problem.cost import Cost, LeastWork, product_numbers, with_link
from pkb_gym.engine.problem.inputs import Draw, InputMaker, Stream
from pkb_gym.engine.problem.problem import CATEGORIES, PATTERNS, Problem, Trials, snake_case
from pkb_gym.engine.problem.rules import close, exact
from pkb_gym.engine.problem.values import Value

__all__ = [
    "CATEGORIES",
    "ITEMSIZE",
    "PATTERNS",
    "Argument",
    "Axes",
    "AxisValue",
    "Cost",
    "Draw",
    "Group",
    "InPlace",
    "InputMaker",
    "LeastWork",
    "Linear",
    "Output",
    "OutputList",
    "Problem",
    "Result",
    "Scalar",
    "SizeError",
    "Sparse",
    "Stream",
    "Tensor",
    "TensorList",
    "Trials",
    "Value",
    "close",
    "divide",
    "exact",
    "product_numbers",
    "snake_case",
    "with_link",
]
