"""FSDPTensorParallel: the layer in one piece in float64, every split of the ranks."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from tests.problems.support import find_problem, make_axes, run_reference


def whole(run, name):
    """A weight put together from its shards: by j along D, by i along F."""
    n_tp = run.axes[0].n_tp
    shards = [args[name].double() for args in run.args]
    along = 1 if name == "W3_shard" else 0
    strips = [torch.cat(shards[i::n_tp], dim=along) for i in range(n_tp)]
    return torch.cat(strips, dim=1 - along)


def expected(run, rank):
    """float64 output of one rank's rows."""
    x = run.args[rank]["x_local"].double()
    gate, up = x @ whole(run, "W1_shard"), x @ whole(run, "W2_shard")
    return (gate * gate.sigmoid() * up) @ whole(run, "W3_shard")


@pytest.mark.parametrize(
    ("world_size", "trial"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (8, 0), (8, 2)]
)
@pytest.mark.parametrize("protocol", ["robust", "published"])
def test_output(world_size, trial, protocol):
    run = run_reference("FSDPTensorParallel", world_size=world_size, trial=trial, protocol=protocol)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        exact = expected(run, rank)
        assert (outputs["out"].double() - exact).norm() <= 1e-2 * exact.norm()
        if protocol == "robust":
            assert not run.wrong(rank, "out", exact.bfloat16()).any()  # wider intermediates are fine
    n_tp = run.axes[0].n_tp
    for rank, args in enumerate(run.args):
        assert torch.equal(args["x_local"], run.args[rank // n_tp * n_tp]["x_local"])


def test_near_misses_are_refused():
    run = run_reference("FSDPTensorParallel", size="published", trial=0)
    right = run.outputs[0]["out"]
    swapped, one_off = right.clone(), right.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    one_off[5, 6] += 0.1
    assert run.wrong(0, "out", one_off).sum() == 1
    for fake in (swapped, 1.02 * right, run.outputs[2]["out"], torch.zeros_like(right)):
        assert run.wrong(0, "out", fake).any()


def test_splits_of_the_ranks():
    problem = find_problem("FSDPTensorParallel")
    degrees = {W: (ax.n_tp, ax.n_fsdp) for W in (1, 2, 4, 8) for ax in make_axes(problem, world_size=W)[:1]}
    assert degrees == {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (2, 4)}
    assert {make_axes(problem, trial=trial)[0].n_tp for trial in range(4)} == {1, 2, 4}
    assert make_axes(problem, world_size=2, trial=1)[0].n_tp == 2
    assert make_axes(problem, trial=1, timed=True)[0].n_tp == 2
    with pytest.raises(SizeError, match="FSDPTensorParallel: axis n_tp=3 must divide W=4"):
        problem.axes(size={"n_tp": 3}, world_size=4, rank=0)
    with pytest.raises(SizeError, match="axis D=255 must be a multiple of n_fsdp=2"):
        problem.axes(size={"D": 255}, world_size=4, rank=0)
