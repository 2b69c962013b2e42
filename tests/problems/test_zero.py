"""ZeRO1 and ZeRO2 against one process that sees the whole batch and the whole state."""

import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.problems.fsdp_zero.zero1.reference import solution as zero1
from pkb_gym.problems.fsdp_zero.zero2.reference import solution as zero2
from tests.problems.mlp_oracle import adam, assert_near, flat_gradient, split
from tests.problems.support import Run, find_problem, make_axes, run_reference, same

NAMES = ("W1", "b1", "W2", "b2")

pytestmark = pytest.mark.parametrize("name", ["ZeRO1", "ZeRO2"])


def oracle(run: Run, **constants: float) -> list[dict[str, torch.Tensor]]:
    root, ax = run.args[0], run.axes[0]
    ax = type(ax)({**ax.entries, **constants})
    w = torch.cat([root[name].flatten() for name in NAMES])
    m, v = (torch.cat([args[name] for args in run.args]) for name in ("exp_avg_part", "exp_avg_sq_part"))
    w, m, v = adam(ax, w, flat_gradient(run.args, [root[name] for name in NAMES]), m, v)
    new = dict(zip(("new_W1", "new_b1", "new_W2", "new_b2"), split(w, ax), strict=True))
    parts = zip(m.chunk(ax.W), v.chunk(ax.W), strict=True)
    return [new | {"new_exp_avg_part": first, "new_exp_avg_sq_part": second} for first, second in parts]


@pytest.mark.parametrize(
    ("world_size", "protocol", "trial"),
    [(1, "robust", 0), (2, "robust", 1), (4, "robust", 0), (4, "robust", 5), (2, "published", 0), (4, "published", 3)],
)
def test_matches_one_process(name, world_size, protocol, trial):
    """At 4 ranks the third slice runs from W1 across b1 into W2."""
    run = run_reference(name, world_size=world_size, protocol=protocol, trial=trial)
    run.assert_passes_own_checks()
    for rank, leaves in enumerate(oracle(run)):
        for leaf, expected in leaves.items():
            assert_near(run, rank, leaf, expected)
            assert "part" in leaf or same(run.outputs[rank][leaf], run.outputs[0][leaf])


def test_each_constant_counts(name):
    run = run_reference(name, world_size=2)
    for axis, value in (("eps", 0.0), ("beta1", 0.0), ("step", 1000)):
        assert run.wrong(0, "new_W1", oracle(run, **{axis: value})[0]["new_W1"].bfloat16()).any(), axis
    for axis, leaf in (("beta1", "new_exp_avg_part"), ("beta2", "new_exp_avg_sq_part")):
        wrong = oracle(run, **{axis: 0.9 * run.axes[0][axis]})[1]
        assert run.wrong(1, leaf, wrong[leaf].bfloat16()).any(), axis


def test_a_gradient_of_zero_from_zero_moments_changes_nothing(name):
    problem = find_problem(name)
    ax = make_axes(problem, world_size=2, protocol="published")[0]
    shapes = {arg.name: [ax[d] for d in arg.shape] for arg in problem.data_args}
    args = [{name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()} for _ in range(2)]
    run = run_reference(name, world_size=2, protocol="published", args=args)
    assert all(not value.any() for outputs in run.outputs for value in outputs.values())


def test_what_does_not_fit_is_refused(name):
    with pytest.raises(AssertionError, match="step must be at least 1, got 0"):
        {"ZeRO1": zero1, "ZeRO2": zero2}[name](*[torch.zeros(1)] * 8, 1e-3, 0.9, 0.99, 1e-8, 0)
    with pytest.raises(SizeError, match=r"axis Pn=.* must be a multiple of W=4"):
        make_axes(find_problem(name), size={"d_out": 15}, world_size=4)


def test_published_cost(name):
    problem = find_problem(name)
    root, other = (problem.cost(problem.axes(size="published", world_size=4, rank=r)) for r in (0, 1))
    assert (root.matrix_flops, root.vector_flops, root.memory_bytes) == (335_544_320, 1_969_536, 1_839_616)
    assert (root.link_in_bytes, other.link_in_bytes) == (788_736, 1_314_560)
    # Out with a switch that multicasts: gradients of foreign slices, the own new slice, rank 0's old parameters.
    assert (root.link_out_bytes, other.link_out_bytes) == (2 * 525_824, 525_824)
    alone = problem.cost(problem.axes(size="published", world_size=1, rank=0))
    assert alone.link_in_bytes == alone.link_out_bytes == 0
