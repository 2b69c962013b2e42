"""RopeAllGather: oracle, both legal roundings, tables that are no cosine and sine."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, run_reference, same

NAME = "RopeAllGather"
LEAVES = (("q_global", "q_local"), ("k_global", "k_local"))


def rotate(run, name, *, symmetric=False, sign=1.0):
    """Element by element as the definition has it, over the whole sequence, in float64."""
    x, c, z = (torch.cat([args[key].double() for args in run.args], 1) for key in (name, "cos_local", "sin_local"))
    D = x.shape[-1]
    out = torch.empty_like(x)
    for d in range(D):
        table = d % (D // 2) if symmetric else d
        partner, direction = (d + D // 2, -sign) if d < D // 2 else (d - D // 2, sign)
        out[..., d] = x[..., d] * c[:, :, None, table] + direction * x[..., partner] * z[:, :, None, table]
    return out


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
def test_the_rotated_sequence(world_size, protocol, dtype):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    for leaf, name in LEAVES:
        exact = rotate(run, name)
        for rank, outputs in enumerate(run.outputs):
            assert same(outputs[leaf], run.outputs[0][leaf]) and outputs[leaf].is_contiguous()
            tolerance = {"float32": 1e-5, "float16": 5e-3, None: 5e-2}[dtype]
            torch.testing.assert_close(outputs[leaf].double(), exact, rtol=1e-2, atol=tolerance)
            if protocol == "robust":
                assert not run.wrong(rank, leaf, exact.to(outputs[leaf].dtype)).any()


def test_near_misses_are_refused():
    run = run_reference(NAME)
    for leaf, name in LEAVES:
        for wrong in (rotate(run, name, symmetric=True), rotate(run, name, sign=-1.0)):
            assert run.wrong(0, leaf, wrong.bfloat16()).float().mean() > 0.4
        stacked = torch.cat(run.outputs[0][leaf].chunk(4, dim=1)).view_as(run.outputs[0][leaf])
        assert run.wrong(0, leaf, stacked).any()  # ranks before batch


def test_a_nan_stays_with_its_pair():
    run = run_reference(NAME, world_size=2)
    run.args[1]["q_local"][1, 2, 3, 5] = torch.nan
    run = run_reference(NAME, world_size=2, args=run.args)
    for outputs in run.outputs:
        assert outputs["q_global"].isnan().nonzero().tolist() == [[1, 10, 3, 5], [1, 10, 3, 13]]


def test_sequence_must_divide_and_heads_be_even():
    for axes, message in (({"S": 10}, "S=10 must be a multiple"), ({"D": 7}, "D=7 must be even")):
        with pytest.raises(SizeError, match=message):
            find_problem(NAME).axes(size=axes, world_size=4, rank=0)
