"""MoELoRAGroupGemmBackward: exact sums, in place, odd and empty sizes, subgroups."""

import pytest
import torch

from tests.problems.support import find_problem, make_axes, run_reference

NAMES = ("grad_fc1_1_lora_A", "grad_fc1_2_lora_A", "grad_fc2_lora_B")


def addends(run, rank, name):
    """Those of the ranks of the group, in float64."""
    partition = run.axes[rank]["group"] or (tuple(range(run.axes[rank].W)),)
    return torch.stack([run.args[s][name].double() for part in partition if rank in part for s in part])


def expected(run, rank, name):
    """The sum over the ranks of the group."""
    return addends(run, rank, name).sum(0)


@pytest.mark.parametrize(
    ("world_size", "trial", "dtype"),
    [(1, 1, None), (2, 2, None), (4, 0, None), (4, 1, "float64"), (4, 2, "float32"), (4, 3, None), (8, 1, "float16")],
)
def test_sums(world_size, trial, dtype):
    run = run_reference("MoELoRAGroupGemmBackward", world_size=world_size, trial=trial, dtype=dtype)
    run.assert_passes_own_checks()
    rtol = {"float64": 1e-14, "float32": 1e-5, "float16": 1e-2}.get(dtype, 2e-2)
    for rank, outputs in enumerate(run.outputs):
        assert tuple(outputs) == NAMES
        for name, got in outputs.items():
            sizes = addends(run, rank, name).abs().sum(0)
            assert ((got.double() - expected(run, rank, name)).abs() <= rtol * sizes).all()


@pytest.mark.parametrize("world_size", [2, 4])
def test_published_sums(world_size):
    run = run_reference("MoELoRAGroupGemmBackward", world_size=world_size, protocol="published")
    for name, got in run.outputs[0].items():
        assert torch.allclose(got.double(), expected(run, 0, name), rtol=2e-2, atol=4e-2)


def test_every_order_of_additions_passes_and_unreduced_gradients_do_not():
    run = run_reference("MoELoRAGroupGemmBackward")
    for name in NAMES:
        a, b, c, d = (args[name] for args in run.args)
        for got in ((a + b) + (c + d), ((d + c) + b) + a, expected(run, 0, name).bfloat16()):
            assert not run.wrong(0, name, got).any()
        for got in (a, a + b + c, 2 * (a + b + c + d), (a + b + c + d) / 4):
            assert run.wrong(0, name, got).float().mean() > 0.5


def test_modes():
    problem = find_problem("MoELoRAGroupGemmBackward")
    trials = [make_axes(problem, size="published", trial=trial)[0] for trial in range(4)]
    assert [ax["group"] for ax in trials] == [None, None, ((0, 2), (1, 3)), None]
    assert trials[3].F_in == 0 and all(ax.F_in != ax.F_out for ax in trials[1:])
    assert all(ax.rank % 2 and ax.F_out % 2 for ax in trials[1:])
    timed = make_axes(problem, size="published", trial=2, timed=True)[0]
    assert (timed.rank, timed.F_in, timed.F_out, timed["group"]) == (8, 1024, 1024, None)
