"""AllGatherGemmAT: oracle, memory layout, illegal sizes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, run_reference

NAME = "AllGatherGemmAT"


def product(run, rank, right=None):
    A = torch.cat([args["A_local"] for args in run.args], dim=1).double()
    return torch.einsum("mk,kn->mn", A, run.args[rank if right is None else right]["B"].double())


@pytest.mark.parametrize(
    ("world_size", "protocol", "dtype"),
    [
        (1, "robust", None),
        (2, "robust", "float32"),
        (4, "robust", None),
        (4, "robust", "float16"),
        (8, "robust", "float64"),
        (2, "published", None),
        (4, "published", None),
    ],
)
def test_whole_left_matrix_times_own_right_matrix(world_size, protocol, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = product(run, rank)
        tolerance = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, None: 1e-2}[dtype]
        torch.testing.assert_close(outputs["out"].double(), exact, rtol=tolerance, atol=tolerance * 8)
        row_major = exact.to(outputs["out"].dtype)
        assert row_major.is_contiguous() and not run.wrong(rank, "out", row_major).any()
        if world_size > 1:
            another = product(run, rank, right=(rank + 1) % world_size).to(outputs["out"].dtype)
            assert run.wrong(rank, "out", another).float().mean() > 0.9


def test_a_nan_spreads_along_its_row_on_all_ranks():
    run = run_reference(NAME, world_size=2)
    run.args[1]["A_local"][5, 3] = torch.nan
    run = run_reference(NAME, world_size=2, args=run.args)
    for outputs in run.outputs:
        assert outputs["out"].isnan().all(1).tolist() == [row == 5 for row in range(32)]
        assert outputs["out"].isnan().sum() == 48


def test_pieces_must_be_equal():
    with pytest.raises(SizeError, match="K=62 must be a multiple of W=4; nearest 60 and 64"):
        find_problem(NAME).axes(size={"K": 62}, world_size=4, rank=0)
