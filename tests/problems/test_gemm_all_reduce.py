"""GemmAllReduce: oracle, legitimate and illegitimate roundings."""

import pytest
import torch

from tests.problems.support import run_reference


def partial_products(run):
    return [args["A_local"].double() @ args["B_local"].double() for args in run.args]


@pytest.mark.parametrize(
    ("world_size", "dtype"), [(1, "bfloat16"), (2, "float32"), (4, "bfloat16"), (4, "float16"), (8, "float64")]
)
def test_the_sum_of_products(world_size, dtype):
    run = run_reference("GemmAllReduce", world_size=world_size, dtype=dtype)
    run.assert_passes_own_checks()
    exact = sum(partial_products(run))
    for rank, outputs in enumerate(run.outputs):
        scale = {"bfloat16": 2**-6, "float16": 2**-8, "float32": 1e-5, "float64": 1e-13}[dtype]
        torch.testing.assert_close(outputs["out"].double(), exact, rtol=scale, atol=scale * exact.std().item())
        assert not run.wrong(rank, "out", exact.to(outputs["out"].dtype)).any()


def test_any_order_of_rounded_sums_passes():
    run = run_reference("GemmAllReduce", world_size=8)
    rounded = [product.bfloat16() for product in partial_products(run)]
    for order in (range(8), reversed(range(8))):
        total = torch.zeros_like(rounded[0])
        for rank in order:
            total = total + rounded[rank]
        assert not run.wrong(0, "out", total).any()


def test_near_misses_are_refused():
    run = run_reference("GemmAllReduce")
    products = partial_products(run)
    without_one_term = sum(products) - run.args[2]["A_local"][:, :1].double() @ run.args[2]["B_local"][:1].double()
    assert run.wrong(0, "out", without_one_term.bfloat16()).float().mean() > 0.3
    assert run.wrong(0, "out", sum(products[:3]).bfloat16()).float().mean() > 0.9


def test_float32_is_held_to_float32():
    run = run_reference("GemmAllReduce", dtype="float32")
    halved = sum(
        (args["A_local"].bfloat16().double() @ args["B_local"].bfloat16().double()).float() for args in run.args
    )
    assert run.wrong(0, "out", halved).float().mean() > 0.9
