"""GemmReduceScatter: oracle, orders of rounded sums, illegal sizes."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference

NAME = "GemmReduceScatter"


def partial_products(run, rank):
    """Every rank's partial product at the rows of `rank`, in float64."""
    W = len(run.args)
    return [
        torch.einsum("ik,kn->in", args["A_local"].chunk(W)[rank].double(), args["B_local"].double())
        for args in run.args
    ]


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial", "dtype"),
    [
        (1, "robust", 0, None),
        (2, "robust", 0, "float32"),
        (2, "robust", 1, None),
        (4, "robust", 0, None),
        (4, "robust", 1, "float32"),
        (8, "robust", 2, "float16"),
        (2, "published", 0, None),
        (4, "published", 1, None),
    ],
)
def test_own_rows_of_the_product(world_size, protocol, trial, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = sum(partial_products(run, rank))
        got = outputs["C_local"]
        tolerance = {"float32": 1e-5, "float16": 1e-2, None: 5e-2}[dtype]
        if run.axes[rank]["whole"]:
            assert torch.equal(got.double(), exact)
        else:
            torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * exact.std().item())
        if protocol == "robust":
            assert not run.wrong(rank, "C_local", exact.to(got.dtype)).any()


def test_any_order_of_rounded_sums_passes():
    run = run_reference(NAME, world_size=8)
    rounded = [product.bfloat16() for product in partial_products(run, 3)]
    for order in (range(8), reversed(range(8))):
        total = torch.zeros_like(rounded[0])
        for rank in order:
            total = total + rounded[rank]
        assert not run.wrong(3, "C_local", total).any()


@pytest.mark.parametrize("trial", [0, 1])
def test_near_misses_are_refused(trial):
    run = run_reference(NAME, trial=trial)
    products = partial_products(run, 0)
    for wrong in (sum(products[:3]), sum(products) / 4, sum(partial_products(run, 1))):
        assert run.wrong(0, "C_local", wrong.bfloat16()).float().mean() > 0.7
    one_term = run.args[2]["A_local"][:8, :1].double() @ run.args[2]["B_local"][:1].double()
    assert run.wrong(0, "C_local", (sum(products) - one_term).bfloat16()).float().mean() > 0.3


def test_whole_numbers_stay_exact_at_every_size():
    problem = find_problem(NAME)
    assert [make_axes(problem, trial=t, timed=t > 1)[0]["whole"] for t in range(4)] == [0, 1, 0, 0]
    run = run_reference(NAME, size={"M": 8, "K": 16384, "N": 16}, world_size=2, trial=1)
    for rank, outputs in enumerate(run.outputs):
        exact = sum(partial_products(run, rank))
        assert torch.equal(outputs["C_local"].double(), exact)
        assert 10 < exact.std() < 64


def test_rows_and_inner_dimension_must_divide():
    for axes, message in (({"M": 30}, "M=30 must be"), ({"K": 30}, "K=30 must be")):
        with pytest.raises(SizeError, match=message):
            find_problem(NAME).axes(size=axes, world_size=4, rank=0)
