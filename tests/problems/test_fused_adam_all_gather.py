"""FusedAdamAllGather against Adam on the whole vectors."""

import pytest
import torch

from pkb_gym.problems.fsdp_zero.fused_adam_all_gather.reference import solution
from tests.problems.mlp_oracle import adam
from tests.problems.support import Run, find_problem, run_reference, same

NAME = "FusedAdamAllGather"


def oracle(run: Run, **constants: float) -> torch.Tensor:
    ax = run.axes[0]
    names = ("master_shard", "grad_shard", "exp_avg", "exp_avg_sq")
    w, g, m, v = (torch.cat([args[name] for args in run.args]) for name in names)
    return adam(type(ax)({**ax.entries, **constants}), w, g.double(), m, v)[0]


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial"),
    [(1, "robust", 0), (2, "robust", 1), (4, "robust", 0), (8, "robust", 3), (2, "published", 1), (4, "published", 0)],
)
def test_matches_adam_on_the_whole_vectors(world_size, protocol, trial):
    run = run_reference(NAME, world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    expected = oracle(run).bfloat16()
    for rank, outputs in enumerate(run.outputs):
        assert not run.wrong(rank, "out", expected).any()
        assert same(outputs["out"], run.outputs[0]["out"])


def test_each_constant_counts():
    run = run_reference(NAME, world_size=2)
    for axis, value in (("eps", 0.0), ("beta1", 0.0), ("beta2", 0.9), ("step", 1000), ("lr", 0.052)):
        assert run.wrong(0, "out", oracle(run, **{axis: value}).bfloat16()).any(), axis
    swapped = run.outputs[0]["out"].view(2, -1).flip(0).reshape(-1)
    assert run.wrong(0, "out", swapped).any()


def test_constants_are_those_of_the_arguments():
    run = run_reference(NAME, world_size=2, trial=1)
    named = find_problem(NAME).sizes["tiny"]
    assert not run.wrong(0, "out", oracle(run).bfloat16()).any()
    for axis in ("lr", "beta1", "eps"):
        assert run.wrong(0, "out", oracle(run, **{axis: named[axis]}).bfloat16()).any(), axis


def test_a_gradient_of_zero_from_zero_moments_changes_nothing():
    names = ("grad_shard", "master_shard", "exp_avg", "exp_avg_sq")
    args = [{name: torch.zeros(3, dtype=torch.bfloat16) for name in names} for _ in range(2)]
    args[1]["master_shard"] += torch.arange(3)
    run = run_reference(NAME, world_size=2, size={"p": 3}, protocol="published", args=args)
    assert run.outputs[0]["out"].tolist() == [0, 0, 0, 0, 1, 2]


def test_what_does_not_fit_is_refused():
    with pytest.raises(AssertionError, match="step must be at least 1, got 0"):
        solution(*[torch.zeros(1)] * 4, 1e-3, 0.9, 0.99, 1e-8, 0)
    with pytest.raises(AssertionError, match="empty"):
        solution(*[torch.zeros(0)] * 4, 1e-3, 0.9, 0.99, 1e-8, 1)
