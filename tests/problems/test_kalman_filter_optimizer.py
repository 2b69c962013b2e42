"""KalmanFilterOptimizer against the filter's equations on one block-diagonal matrix."""

import pytest
import torch

from pkb_gym.problems.data_parallel.kalman_filter_optimizer.reference import solution
from tests.problems.counterfeit_runs import refused
from tests.problems.support import Job, Run, find_problem, make_axes, run_jobs, run_reference


def oracle(run: Run) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """All updated weights, and every rank's updated covariances."""
    lam = run.axes[0]["kalman_lambda"]
    blocks = [len(args["H"]) for args in run.args]
    P = torch.block_diag(*[p for args in run.args for p in args["P"]])
    H = torch.cat([h for args in run.args for h in args["H"]])
    gain = 1.0 / (lam * sum(blocks) + (H.T @ P @ H).item())
    weights, covariances = [], []
    for args in run.args:
        K = [p @ h for p, h in zip(args["P"], args["H"], strict=True)]
        weights += [w + gain * args["error"].item() * k for w, k in zip(args["weights"], K, strict=True)]
        covariances.append(
            [(p - gain * torch.outer(k[:, 0], k[:, 0])) / lam for p, k in zip(args["P"], K, strict=True)]
        )
    return weights, covariances


@pytest.mark.parametrize(("world_size", "trial"), [(4, 0), (2, 1), (1, 3)])
def test_matches_one_process(world_size: int, trial: int) -> None:
    run = run_reference("KalmanFilterOptimizer", world_size=world_size, trial=trial)
    weights, covariances = oracle(run)
    nue, lam = run.axes[0]["kalman_nue"], run.axes[0]["kalman_lambda"]
    for rank, outputs in enumerate(run.outputs):
        assert outputs["lambda_next"].item() == pytest.approx(nue * lam + 1 - nue, rel=1e-14)
        for i, expected in enumerate(weights):
            torch.testing.assert_close(outputs[f"all_weights[{i}]"], expected, rtol=1e-12, atol=1e-13)
        for i, expected in enumerate(covariances[rank]):
            torch.testing.assert_close(outputs[f"P_out[{i}]"], expected, rtol=1e-12, atol=1e-13)
    run.assert_passes_own_checks()


def test_ranks_may_hold_different_totals() -> None:
    size = {"blocks_by_rank": ((3, 2), (4,))}
    run = run_reference("KalmanFilterOptimizer", world_size=2, size=size, protocol="published")
    weights, covariances = oracle(run)
    assert [len(w) for w in weights] == [3, 2, 4]
    for rank, outputs in enumerate(run.outputs):
        for i, expected in enumerate(weights):
            torch.testing.assert_close(outputs[f"all_weights[{i}]"], expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(outputs["P_out[0]"], covariances[rank][0], rtol=1e-12, atol=1e-13)


def test_doing_nothing_is_refused_though_the_published_rule_accepts_it() -> None:
    """The recorded weakness: unchanged weights and P / lambda."""
    for protocol, is_refused in (("published", False), ("robust", True)):
        run = run_reference("KalmanFilterOptimizer", world_size=2, size={"blocks": (256,) * 8}, protocol=protocol)
        args, lam = run.args[0], run.axes[0]["kalman_lambda"]
        assert bool(run.wrong(0, "all_weights[0]", args["weights"][0]).any()) == is_refused
        assert bool(run.wrong(0, "P_out[0]", args["P"][0] / lam).any()) == is_refused


def test_symmetrised_covariance_and_float32_are_refused() -> None:
    run = run_reference("KalmanFilterOptimizer", world_size=2, trial=1)
    good = run.outputs[0]["P_out[0]"]
    assert run.wrong(0, "P_out[0]", (good + good.T) / 2).any()
    assert run.wrong(0, "P_out[0]", good.float().double()).any()


def test_blocks_differ_by_rank_in_checks_only() -> None:
    problem = find_problem("KalmanFilterOptimizer")
    axes = make_axes(problem, trial=0)
    assert len({ax["blocks"] for ax in axes}) > 1
    assert {sum(ax["blocks"]) for ax in axes} == {36}
    assert {make_axes(problem, trial=trial)[0]["skew"] for trial in range(3)} == {0.0, 0.1}
    assert {make_axes(problem, trial=trial, timed=True)[0]["skew"] for trial in range(2)} == {0.1}
    assert {ax["blocks"] for ax in make_axes(problem, trial=1, timed=True)} == {(16, 12, 8)}


def test_half_of_each_covariance_is_not_enough_in_timed_calls() -> None:
    """They were symmetric there, so that whoever read one half of P saved a quarter of the traffic."""

    def mirrored(H, error, weights, P, *rest):
        return solution(H, error, weights, [block.tril() + block.tril(-1).T for block in P], *rest)

    truth, got = run_jobs(
        [Job("KalmanFilterOptimizer", world_size=2, timed=True, solution=each) for each in (None, mirrored)]
    )
    assert not refused(truth, truth)
    assert refused(truth, got)
