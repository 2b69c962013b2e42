"""ClipGradNorm against a float64 norm over every rank's gradients."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "ClipGradNorm"


def oracle(run: Run, rank: int) -> tuple[float, dict[str, torch.Tensor]]:
    """The norm that a rank returns, and its gradients after the call, in float64."""
    ax = run.axes[rank]
    groups = ax["fsdp_group"] or [(one,) for one in range(ax.W)]
    mates = next(group for group in groups if rank in group)
    values = [g.double().flatten() for mate in mates for g in run.args[mate]["grad_tensors"] if g is not None]
    norm = float((torch.cat(values).abs() ** ax["norm_type"]).sum()) ** (1 / ax["norm_type"])
    coef = min(1.0, ax["max_norm"] / norm)
    mine = enumerate(run.args[rank]["grad_tensors"])
    return norm, {f"grad_tensors[{i}]": g.double() * coef for i, g in mine if g is not None}


CASES = [(4, 0), (4, 1), (4, 2), (4, 3), (2, 4), (2, 5), (1, 0), (1, 3)]


@pytest.mark.parametrize(("world_size", "trial"), CASES)
def test_matches_one_process(world_size: int, trial: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial)
    for rank in range(world_size):
        norm, after = oracle(run, rank)
        assert (norm > run.axes[0]["max_norm"]) == run.axes[0]["clips"]
        assert run.outputs[rank]["total_norm"].item() == pytest.approx(norm, rel=1e-5)
        for leaf, expected in after.items():
            assert not run.wrong(rank, leaf, expected.to(torch.bfloat16)).any(), leaf
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("trial", "factor"), [(6, 1.0), (7, 0.0)])
def test_a_norm_that_is_no_number_clips_nothing_and_an_infinite_one_everything(trial: int, factor: float) -> None:
    run = run_reference(NAME, world_size=4, trial=trial)
    run.assert_passes_own_checks()
    finite = 0
    for rank, args in enumerate(run.args):
        assert not run.outputs[rank]["total_norm"].isfinite()
        assert run.wrong(rank, "total_norm", torch.ones(()))
        for i, g in enumerate(args["grad_tensors"]):
            if g is not None and g.isfinite().all():
                leaf, finite = f"grad_tensors[{i}]", finite + 1
                assert torch.equal(run.outputs[rank][leaf], g * factor)
                assert run.wrong(rank, leaf, torch.full_like(g, torch.nan)).any()
    held = [g for args in run.args for g in args["grad_tensors"] if g is not None]
    assert finite == len(held) - 1


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_norm_matches(world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, protocol="published", trial=world_size)
    for rank in range(world_size):
        norm, after = oracle(run, rank)
        assert run.outputs[rank]["total_norm"].item() == pytest.approx(norm, rel=1e-5)
        for leaf, expected in after.items():
            assert torch.allclose(run.outputs[rank][leaf].double(), expected, rtol=1e-2)


def test_a_coefficient_of_either_precision_passes_and_near_misses_do_not() -> None:
    run = run_reference(NAME, world_size=2, trial=0)
    g, good = run.args[0]["grad_tensors"][0], run.outputs[0]["grad_tensors[0]"]
    coef = torch.tensor(run.axes[0]["max_norm"] / run.outputs[0]["total_norm"].item())
    assert not run.wrong(0, "grad_tensors[0]", (g * coef.bfloat16())).any()
    one_off = good.clone()
    one_off[3, 4] += 0.1 * good.abs().max()
    for wrong in (g, good * 1.02, good.roll(1, 0), torch.zeros_like(good), one_off):
        assert run.wrong(0, "grad_tensors[0]", wrong).any()
    norm = run.outputs[0]["total_norm"]
    own = torch.cat([g.float().flatten() for g in run.args[0]["grad_tensors"] if g is not None]).norm()
    for wrong in (norm * 1.0003, norm * 0, own):
        assert run.wrong(0, "total_norm", wrong).any()


SMALL = {"shapes": ((4,),), "max_norm": 8.0, "norm_type": 1.0}


def with_gradient(value: float) -> list[dict[str, list[torch.Tensor]]]:
    """Two ranks of ones; rank 0's first element is `value`."""
    grads = [torch.ones(4, dtype=torch.bfloat16) for _ in range(2)]
    grads[0][0] = value
    return [{"grad_tensors": [g]} for g in grads]


@pytest.mark.parametrize(
    ("value", "norm", "rest"), [(float("nan"), float("nan"), 1.0), (float("inf"), float("inf"), 0.0), (1.0, 8.0, 1.0)]
)
def test_nan_and_a_norm_at_the_threshold_change_nothing_and_inf_makes_zeros(
    value: float, norm: float, rest: float
) -> None:
    run = run_reference(NAME, world_size=2, size=SMALL, protocol="published", args=with_gradient(value))
    for outputs in run.outputs:
        assert outputs["total_norm"].item() == pytest.approx(norm, nan_ok=True)
        assert outputs["grad_tensors[0]"][1:].tolist() == [rest] * 3
    assert run.outputs[0]["grad_tensors[0]"][0].isnan() == (value != 1.0)


def test_all_zero_and_no_gradients_at_all() -> None:
    zeros = [{"grad_tensors": [torch.zeros(4, dtype=torch.bfloat16)]}, {"grad_tensors": [None]}]
    run = run_reference(NAME, world_size=2, size=SMALL, protocol="published", args=zeros[:1] * 2)
    assert run.outputs[1]["total_norm"].item() == 0.0
    bare = run_reference(NAME, world_size=1, size=SMALL | {"shapes": (None,)}, args=zeros[1:], protocol="published")
    assert bare.outputs[0]["total_norm"].item() == 0.0


def test_trials_cover_modes_and_groups() -> None:
    problem = find_problem(NAME)
    trials = [make_axes(problem, trial=trial) for trial in range(6)]
    assert [(a[0]["clips"], a[0]["norm_type"]) for a in trials] == [
        (True, 2.0),
        (False, 2.0),
        (True, 1.0),
        (True, 3.0),
        (False, 3.0),
        (True, 2.0),
    ]
    assert trials[2][0]["fsdp_group"] == ((0, 2), (1, 3)) and trials[5][0]["fsdp_group"] is None
    assert any(set(ax["local_shapes"]) == {None} for ax in trials[1])
    assert len({len(ax["local_shapes"]) for ax in trials[0]}) == 2
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert timed["clips"] and timed["local_shapes"] == ((1024, 1024),) * 3 and timed["norm_type"] == 2.0
