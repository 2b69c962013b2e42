"""A returned size: a tuple of whole numbers stands for a 1-dimensional int64 tensor."""

import pytest
import torch

from pkb_gym.engine.rankside import results
from pkb_gym.engine.rankside.failures import CandidateError

SHAPE = ({"name": "flat_shape", "key": "flat_shape", "list": False, "leaves": [{}]},)


def test_a_size_becomes_a_tensor():
    for size in ((64, 32), torch.empty(64, 32).shape, torch.tensor([64, 32])):
        ((tensor,),) = results.split("value", SHAPE, size)
        assert tensor.dtype == torch.int64 and tensor.tolist() == [64, 32]


@pytest.mark.parametrize("other", [[64, 32], (64, 32.0), (True, 2), "64"])
def test_anything_else_is_refused(other):
    with pytest.raises(CandidateError, match="flat_shape: expected a plain dense tensor"):
        results.split("value", SHAPE, other)
