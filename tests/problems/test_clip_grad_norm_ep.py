"""ClipGradNormEP against a float64 norm over every rank's gradients."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference

LISTS = ("non_ep_grad_tensors", "ep_grad_tensors")


def oracle(run: Run) -> tuple[float, list[dict[str, torch.Tensor]]]:
    """The global norm and every rank's gradients after the call."""
    ax = run.axes[0]
    p, scaled = ax["norm_type"], []
    for args in run.args:
        leaves = {}
        for name, factor in zip(LISTS, (1.0, 1.0 / ax.ep_size), strict=True):
            for i, g in enumerate(args[name]):
                if g is not None:
                    leaves[f"{name}[{i}]"] = (g.double() * factor).to(g.dtype).double()
        scaled.append(leaves)
    norm = sum(g.abs().pow(p).sum().item() for leaves in scaled for g in leaves.values()) ** (1 / p)
    coef = ax["max_norm"] / norm if norm > ax["max_norm"] else 1.0
    return norm, [{leaf: g * coef for leaf, g in leaves.items()} for leaves in scaled]


@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (4, 1), (4, 2), (2, 3), (1, 1)])
def test_matches_one_process(world_size: int, trial: int) -> None:
    run = run_reference("ClipGradNormEP", world_size=world_size, trial=trial)
    norm, after = oracle(run)
    assert (norm > run.axes[0]["max_norm"]) == run.axes[0]["clips"]
    for rank, leaves in enumerate(after):
        assert run.outputs[rank]["total_norm"].item() == pytest.approx(norm, rel=1e-5)
        for leaf, expected in leaves.items():
            assert not run.wrong(rank, leaf, expected.to(torch.bfloat16)).any(), leaf
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("trial", "factor"), [(4, 0.5), (5, 0.0)])
def test_a_norm_that_is_no_number_clips_nothing_and_an_infinite_one_everything(trial: int, factor: float) -> None:
    run = run_reference("ClipGradNormEP", world_size=4, trial=trial)
    run.assert_passes_own_checks()
    for rank, args in enumerate(run.args):
        assert not run.outputs[rank]["total_norm"].isfinite()
        for i, g in enumerate(args["ep_grad_tensors"]):
            if g is not None:
                assert torch.equal(run.outputs[rank][f"ep_grad_tensors[{i}]"], g * factor)
                assert run.wrong(rank, f"ep_grad_tensors[{i}]", torch.full_like(g, torch.nan)).any()
    assert sum(not g.isfinite().all() for args in run.args for g in args["non_ep_grad_tensors"] if g is not None) == 1


def test_shortcuts_are_refused() -> None:
    run = run_reference("ClipGradNormEP", world_size=4, trial=0)
    dense, expert = run.args[0][LISTS[0]][0], run.args[0][LISTS[1]][1]
    assert run.wrong(0, "non_ep_grad_tensors[0]", dense).any()  # not clipped
    good = run.outputs[0]["ep_grad_tensors[1]"]
    assert run.wrong(0, "ep_grad_tensors[1]", 2 * good).any()  # not divided by ep_size
    assert run.wrong(0, "ep_grad_tensors[1]", expert).any()
    assert run.wrong(0, "total_norm", run.outputs[0]["total_norm"] * 1.0003).any()


def with_gradient(value: float) -> list[dict[str, list[torch.Tensor | None]]]:
    """Two ranks; rank 0's first element is `value`, everything else 1."""
    args = [
        {LISTS[0]: [torch.ones(4, dtype=torch.bfloat16)], LISTS[1]: [torch.ones(4, dtype=torch.bfloat16)]}
        for _ in range(2)
    ]
    args[0][LISTS[0]][0][0] = value
    return args


SMALL = {"dense": ((4,),), "expert": ((4,),), "ep_size": 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_leaves_gradients_unclipped_and_inf_makes_zeros(value: float) -> None:
    run = run_reference("ClipGradNormEP", world_size=2, size=SMALL, protocol="published", args=with_gradient(value))
    nan = value != value
    for outputs in run.outputs:
        assert outputs["total_norm"].isnan() if nan else outputs["total_norm"].isinf()
        assert outputs["ep_grad_tensors[0]"].tolist() == [0.5 if nan else 0.0] * 4
    assert run.outputs[0]["non_ep_grad_tensors[0]"].isnan().tolist() == [True, False, False, False]


def test_norm_equal_to_the_threshold_does_not_clip() -> None:
    """8 dense ones and 8 expert halves: the norm is sqrt(10); with p = 1 it is 12."""
    size = SMALL | {"max_norm": 12.0, "norm_type": 1.0}
    run = run_reference("ClipGradNormEP", world_size=2, size=size, protocol="published", args=with_gradient(1.0))
    assert run.outputs[1]["total_norm"].item() == 12.0
    assert run.outputs[1]["non_ep_grad_tensors[0]"].tolist() == [1.0] * 4


def test_trials_cover_modes_and_groups() -> None:
    problem = find_problem("ClipGradNormEP")
    trials = [make_axes(problem, world_size=4, trial=trial) for trial in range(4)]
    assert {(a[0]["clips"], a[0]["norm_type"], a[0].ep_size) for a in trials} == {
        (True, 2.0, 2),
        (False, 2.0, 2),
        (True, 1.0, 4),
        (False, 3.0, 3),
    }
    assert any(all(shape is None for shape in ax["expert"]) for ax in trials[1])
    assert trials[3][0]["ep_group"] is None and trials[3][0]["ep_fsdp_group"] == ((0, 1, 2, 3),)
    eight = problem.axes(size="published", world_size=8, rank=5)
    assert eight["ep_group"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert eight["ep_fsdp_group"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    timed = make_axes(problem, size="published", trial=3, timed=True)[0]
    assert timed["clips"] and timed["dense"] == ((1024, 1024),) and timed.ep_size == 2
