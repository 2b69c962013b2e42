"""FSDPStep against one process that sees the whole batch and the whole state."""

import pytest
import torch

from pkb_gym.problems.fsdp_zero.fsdp_step.reference import solution
from tests.problems.mlp_oracle import adam, assert_near, flat_gradient, split
from tests.problems.support import Run, find_problem, make_axes, run_reference


def oracle(run: Run, **constants: float) -> list[dict[str, torch.Tensor]]:
    ax = run.axes[0]
    ax = type(ax)({**ax.entries, **constants})
    names = ("flat_param_shard", "exp_avg_shard", "exp_avg_sq_shard")
    w, m, v = (torch.cat([args[name] for args in run.args]) for name in names)
    new = adam(ax, w, flat_gradient(run.args, split(w, ax)), m, v, decay=ax["weight_decay"])
    return [
        dict(zip(("theta", "m", "v"), slices, strict=True))
        for slices in zip(*(flat.chunk(ax.W) for flat in new), strict=True)
    ]


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial"),
    [(1, "robust", 0), (2, "robust", 1), (4, "robust", 0), (4, "robust", 5), (2, "published", 0), (4, "published", 3)],
)
def test_matches_one_process(world_size, protocol, trial):
    run = run_reference("FSDPStep", world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    for rank, leaves in enumerate(oracle(run)):
        for leaf, expected in leaves.items():
            assert_near(run, rank, leaf, expected)


def test_each_constant_counts():
    run = run_reference("FSDPStep", world_size=2)
    for axis, value in (("eps", 0.0), ("beta1", 0.0), ("step", 1000), ("weight_decay", 0.0)):
        assert run.wrong(0, "theta", oracle(run, **{axis: value})[0]["theta"].bfloat16()).any(), axis


def test_published_parameters_are_zero_on_all_ranks_but_the_first():
    run = run_reference("FSDPStep", world_size=4, protocol="published")
    assert [bool(args["flat_param_shard"].any()) for args in run.args] == [True, False, False, False]
    assert not run.outputs[0]["m"].any() and run.outputs[3]["m"].any()


def test_without_gradient_only_the_decay_acts():
    problem = find_problem("FSDPStep")
    ax = make_axes(problem, world_size=2)[0]
    shapes = {arg.name: [ax[d] for d in arg.shape] for arg in problem.data_args}
    args = [{name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()} for _ in range(2)]
    args[0]["flat_param_shard"][:64] = 1.0  # W1 alone: its gradient is 0 while W2 is
    run = run_reference("FSDPStep", world_size=2, args=args)
    decayed = 1 - run.axes[0]["lr"] * run.axes[0]["weight_decay"]
    assert run.outputs[0]["theta"].tolist() == pytest.approx([decayed] * 64 + [0.0] * (ax.part - 64), rel=2**-8)
    assert not run.outputs[1]["theta"].any() and not run.outputs[0]["v"].any()


def test_the_decay_is_that_of_the_arguments():
    run = run_reference("FSDPStep", world_size=2, trial=1)
    ax, before = run.axes[0], run.args[0]["flat_param_shard"].float()
    right = run.outputs[0]["theta"]
    named = right.float() + ax["lr"] * (ax["weight_decay"] - 1) * before
    assert ax["weight_decay"] > 1 and run.wrong(0, "theta", named.bfloat16()).any()


def test_steps_count_from_one():
    with pytest.raises(AssertionError, match="step must be at least 1, got 0"):
        solution(*[torch.zeros(1)] * 3, [], *[torch.zeros(1)] * 2, 1e-3, 0.9, 0.99, 1e-8, 0.0, 0)
