"""The rule for gathered results: the norm of each rank's errors, with more room for few elements."""

from __future__ import annotations

import pytest
import torch

from pkb_gym.engine.problem import Axes
from pkb_gym.engine.problem.block_rules import blocks_close
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext


def marks(dim: int, got: torch.Tensor, expected: torch.Tensor, dtype: str = "bfloat16") -> torch.Tensor:
    context = CheckContext(Axes({"W": 2, "r": 0}, dtype=dtype, problem="Test"), expected, [{}], {}, {}, "out")
    return blocks_close(0.01, dim).wrong(got, context)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_block_with_errors_too_large_together_is_wrong_alone(dim: int) -> None:
    expected = torch.ones(64, 64)
    second = (slice(None), slice(32, None)) if dim else (slice(32, None),)
    near, far = expected.clone(), expected.clone()
    near[second] += 0.0104  # 2048 elements have room for 0.01 (1 + 2 / sqrt(2048)) = 0.01044
    far[second] += 0.0105
    assert not marks(dim, near, expected).any()
    wrong = marks(dim, far, expected)
    assert wrong[second].all()
    assert int(wrong.sum()) == 2048


def test_the_bound_shrinks_with_the_dtype_and_holds_for_infinity_and_nothing() -> None:
    expected = torch.ones(2, 1024)
    error = 0.01 * DTYPE_SCALE["float32"]
    assert not marks(0, expected + error, expected, "float32").any()
    assert marks(0, expected + 1.1 * error, expected, "float32").all()
    expected[1, 3] = float("inf")
    assert not marks(0, expected.clone(), expected).any()
    assert marks(0, torch.ones(2, 1024), expected)[1].all()
    assert marks(0, torch.ones(0, 4), torch.ones(0, 4)).shape == (0, 4)
