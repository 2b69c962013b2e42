"""Wrong collectives, without a gang."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pkb_gym.authoring import wrong_collectives


@pytest.mark.parametrize(("options", "expected"), [({"dst": 3}, 2.0), ({"dst": 3, "op": dist.ReduceOp.MAX}, 8.0)])
def test_a_mean_is_taken_whatever_number_the_root_has(options: dict[str, Any], expected: float) -> None:
    """The numbers of ranks 3 and 4 are equal to operations that are no sums."""
    tensor = torch.full((2,), 8.0)
    size = mock.patch.object(dist, "get_world_size", return_value=4)
    with mock.patch.object(dist, "reduce"), size, wrong_collectives.means():
        dist.reduce(tensor, **options)
    assert tensor.tolist() == [expected, expected]
