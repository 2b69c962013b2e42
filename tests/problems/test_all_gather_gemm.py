"""AllGatherGemm: oracle, the order of the shards, published inputs, illegal sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import Run, find_problem, run_reference

NAME = "AllGatherGemm"
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, None: 1e-2}


def product(run: Run, rank: int, order: Sequence[int] | None = None) -> torch.Tensor:
    """In float64, the sum over ranks of their shard times the rows of this rank's B that belong to it."""
    B = run.args[rank]["B"].double()
    rows = B.chunk(len(run.args))
    owners = range(len(run.args)) if order is None else order
    out = torch.zeros(run.axes[rank].M, B.shape[1], dtype=torch.float64)
    for place, owner in enumerate(owners):
        out += torch.einsum("mk,kn->mn", run.args[owner]["A_local"].double(), rows[place])
    return out


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
def test_whole_left_matrix_times_own_right_matrix(world_size: int, protocol: str, dtype: str | None) -> None:
    run = run_reference(NAME, world_size=world_size, protocol=protocol, dtype=dtype)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact, out = product(run, rank), outputs["out"]
        assert out.is_contiguous()
        torch.testing.assert_close(out.double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 8)
        assert not run.wrong(rank, "out", exact.to(out.dtype)).any()


@pytest.mark.parametrize("protocol", ["robust", "published"])
def test_shards_in_another_order_and_another_s_right_matrix_are_wrong(protocol: str) -> None:
    run = run_reference(NAME, protocol=protocol)
    for rank, outputs in enumerate(run.outputs):
        dtype = outputs["out"].dtype
        swapped = product(run, rank, order=[1, 0, 2, 3]).to(dtype)
        assert run.wrong(rank, "out", swapped).float().mean() > 0.7
        another = run.outputs[(rank + 1) % 4]["out"]
        assert run.wrong(rank, "out", another).float().mean() > 0.7


def test_a_stale_shard_is_wrong() -> None:
    """A kernel that does not wait for a peer multiplies by what lay there before."""
    run, before = (run_reference(NAME, world_size=2, trial=trial) for trial in (1, 0))
    stale = [before.args[0] | {"B": run.args[0]["B"]}, run.args[1]]
    mixed = Run(run.problem, run.axes, stale, run.outputs)
    got = product(mixed, 1).to(run.outputs[1]["out"].dtype)
    assert run.wrong(1, "out", got).float().mean() > 0.7


def test_a_nan_spreads_along_its_row_on_all_ranks() -> None:
    run = run_reference(NAME, world_size=2)
    run.args[1]["A_local"][5, 3] = torch.nan
    run = run_reference(NAME, world_size=2, args=run.args)
    for outputs in run.outputs:
        assert outputs["out"].isnan().all(1).tolist() == [row == 5 for row in range(32)]
        assert outputs["out"].isnan().sum() == 48


def test_shards_must_be_equal() -> None:
    with pytest.raises(SizeError, match="K=62 must be a multiple of W=4; nearest 60 and 64"):
        find_problem(NAME).axes(size={"K": 62}, world_size=4, rank=0)
