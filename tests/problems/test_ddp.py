"""DDP against one process that sees the whole batch."""

import pytest
import torch

from pkb_gym.problems.data_parallel.ddp.reference import solution
from tests.problems.mlp_oracle import adam, assert_near, flat_gradient, split
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAMES = ("W1", "b1", "W2", "b2")


def oracle(run: Run) -> dict[str, torch.Tensor]:
    root, ax = run.args[0], run.axes[0]
    g = flat_gradient(run.args, [root[name] for name in NAMES])
    w, m, v = (
        torch.cat([root[prefix + name].flatten() for name in NAMES]) for prefix in ("", "exp_avg_", "exp_avg_sq_")
    )
    outputs = {}
    for prefix, flat in zip(("new_", "new_exp_avg_", "new_exp_avg_sq_"), adam(ax, w, g, m, v), strict=True):
        outputs |= {prefix + name: part for name, part in zip(NAMES, split(flat, ax), strict=True)}
    return outputs


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial"),
    [(1, "robust", 0), (2, "robust", 1), (4, "robust", 0), (4, "robust", 5), (2, "published", 0), (4, "published", 3)],
)
def test_matches_one_process(world_size, protocol, trial):
    run = run_reference("DDP", world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    for leaf, expected in oracle(run).items():
        assert_near(run, 0, leaf, expected)
        assert all(same(outputs[leaf], run.outputs[0][leaf]) for outputs in run.outputs)


def test_each_term_counts():
    """What leaves out a term of the step differs by more than is let through."""
    run = run_reference("DDP", world_size=2)
    right, ax, root = oracle(run), run.axes[0], run.args[0]
    for axis, value in (("eps", 0.0), ("beta1", 0.0), ("step", 1000), ("lr", 1.1 * ax["lr"])):
        changed = Run(run.problem, [type(ax)({**ax.entries, axis: value})], run.args, run.outputs)
        assert run.wrong(0, "new_W1", oracle(changed)["new_W1"].bfloat16()).any(), axis
    local = flat_gradient(run.args[:1], [root[name] for name in NAMES])
    w, m, v = (torch.cat([root[p + name].flatten() for name in NAMES]) for p in ("", "exp_avg_", "exp_avg_sq_"))
    for gradient in (local, 2 * flat_gradient(run.args, [root[name] for name in NAMES])):
        wrong = split(adam(ax, w, gradient, m, v)[0], ax)
        assert run.wrong(0, "new_W2", wrong[2].bfloat16()).any()
    for leaf in right:
        assert not run.wrong(0, leaf, right[leaf].bfloat16()).any()


def test_a_gradient_of_zero_from_zero_moments_changes_nothing():
    problem = find_problem("DDP")
    ax = make_axes(problem, world_size=2, protocol="published")[0]
    shapes = {arg.name: [ax[d] for d in arg.shape] for arg in problem.data_args}
    args = [{name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()} for _ in range(2)]
    run = run_reference("DDP", world_size=2, protocol="published", args=args)
    assert all(not value.any() for outputs in run.outputs for value in outputs.values())


def test_steps_count_from_one():
    with pytest.raises(AssertionError, match="step must be at least 1, got 0"):
        solution(*[torch.zeros(1)] * 14, 1e-3, 0.9, 0.99, 1e-8, 0)


def test_trials_vary_what_bfloat16_can_show():
    axes = [make_axes(find_problem("DDP"), trial=trial)[0] for trial in range(8)]
    assert {ax["step"] for ax in axes if ax["step"] < 8} == {1}
    assert all(0.8 <= ax["beta2"] <= 0.99 for ax in axes)
    assert [len({ax[name] for ax in axes}) for name in ("lr", "beta1", "beta2")] == [2, 2, 8]


def test_a_second_moment_that_does_not_decay_is_refused():
    run = run_reference("DDP", world_size=2, trial=3)
    after, before = run.outputs[0]["new_exp_avg_sq_W1"], run.args[0]["exp_avg_sq_W1"]
    lasting = after.float() + (1 - run.axes[0]["beta2"]) * before.float()
    assert run.wrong(0, "new_exp_avg_sq_W1", lasting.bfloat16()).any()


def test_sizes_with_a_fixed_batch_share_it():
    assert make_axes(find_problem("DDP"), size="published", world_size=8)[0].n == 128
