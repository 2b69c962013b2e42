"""GemmAllGather: oracle, each rank's own left matrix, illegal sizes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, run_reference, same

NAME = "GemmAllGather"


def side_by_side(run, left=None):
    """Columns j*n .. (j+1)*n-1 from rank j's factors; `left` replaces every A."""
    factors = [(args["A"] if left is None else left, args["B"]) for args in run.args]
    return torch.cat([torch.einsum("mk,kc->mc", A.double(), B.double()) for A, B in factors], dim=1)


@pytest.mark.parametrize(
    ("world_size", "protocol", "dtype"),
    [
        (1, "robust", None),
        (2, "robust", "float32"),
        (4, "robust", None),
        (8, "robust", "float16"),
        (2, "published", None),
        (4, "published", None),
    ],
)
def test_products_side_by_side(world_size, protocol, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    exact = side_by_side(run)
    for rank, outputs in enumerate(run.outputs):
        assert same(outputs["C"], run.outputs[0]["C"]) and outputs["C"].is_contiguous()
        tolerance = {"float32": 1e-5, "float16": 2e-3, None: 1e-2}[dtype]
        torch.testing.assert_close(outputs["C"].double(), exact, rtol=tolerance, atol=tolerance * exact.std().item())
        assert not run.wrong(rank, "C", exact.to(outputs["C"].dtype)).any()


def test_gathering_the_weight_instead_is_wrong():
    run = run_reference(NAME)
    for rank, args in enumerate(run.args):
        wrong = run.wrong(rank, "C", side_by_side(run, left=args["A"]).bfloat16())
        own = slice(rank * 16, (rank + 1) * 16)
        assert not wrong[:, own].any()
        assert wrong.float().mean() > 0.7


def test_column_blocks_must_be_equal():
    with pytest.raises(SizeError, match="N=30 must be a multiple of W=4"):
        find_problem(NAME).axes(size={"N": 30}, world_size=4, rank=0)
