"""GNNFeatureExchangeBackward against rows added one by one in float64."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def oracle(run: Run, rank: int) -> torch.Tensor:
    """Row t of source q's chunk for `rank` is added to the seed that the ids name for it."""
    n, ax = run.axes[rank].W, run.axes[rank]
    total = torch.zeros(ax.S, ax.D, dtype=torch.float64)
    ids = iter(run.args[rank]["seed_inverse_ids"].tolist())
    for i in range(n):
        q = (rank + i) % n
        sent = run.axes[q]["counts_sent"]
        begin = sum(sent[: (rank - q) % n])
        for row in run.args[q]["grad_output"][begin : begin + sent[(rank - q) % n]]:
            total[next(ids)] += row.double()
    assert next(ids, None) is None
    return total


def assert_close(run: Run) -> None:
    for rank, outputs in enumerate(run.outputs):
        torch.testing.assert_close(outputs["grad_seeds"].double(), oracle(run, rank), rtol=1e-5, atol=1e-5)
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 2), (4, 3), (4, 5)])
def test_every_row_is_added_once(world_size: int, trial: int) -> None:
    assert_close(run_reference("GNNFeatureExchangeBackward", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_rows_are_added_once(world_size: int) -> None:
    assert_close(run_reference("GNNFeatureExchangeBackward", world_size=world_size, protocol="published"))


def test_no_rows_give_zeros_and_no_nan_spreads() -> None:
    size = {"requests": ((2, 0), (0, 0)), "S": 3, "D": 2}
    grads = torch.tensor([[float("nan"), 1.0], [2.0, float("inf")]])
    none = {"grad_output": torch.empty(0, 2), "seed_inverse_ids": torch.empty(0, dtype=torch.int64)}
    args = [{"grad_output": grads, "seed_inverse_ids": torch.tensor([2, 0])}, none]
    run = run_reference("GNNFeatureExchangeBackward", world_size=2, size=size, protocol="published", args=args)
    first, second = (outputs["grad_seeds"] for outputs in run.outputs)
    assert torch.equal(second, torch.zeros(3, 2))
    expected = torch.tensor([[2.0, float("inf")], [0.0, 0.0], [float("nan"), 1.0]])
    torch.testing.assert_close(first, expected, rtol=0, atol=0, equal_nan=True)


def test_bfloat16_rows_and_a_touched_empty_seed_are_refused() -> None:
    run = run_reference("GNNFeatureExchangeBackward", world_size=2, size="published")
    good = run.outputs[0]["grad_seeds"]
    assert run.wrong(0, "grad_seeds", good.bfloat16().float()).float().mean() > 0.5
    untouched = (good == 0).all(1)
    assert untouched.any()
    touched = good.clone()
    touched[untouched] = 1e-9
    assert run.wrong(0, "grad_seeds", touched).sum() == untouched.sum() * good.shape[1]


def test_trials_cover_uneven_lists_and_sizes() -> None:
    problem = find_problem("GNNFeatureExchangeBackward")
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(6)]
    assert all(any(len(set(ax["counts_sent"])) > 1 for ax in axes) for axes in trials)
    assert all(len({ax.S for ax in axes}) > 1 for axes in trials)
    assert any(0 in ax["counts_sent"] for axes in trials for ax in axes)
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed["counts_sent"], timed.S) == ((256,) * 4, 512)
