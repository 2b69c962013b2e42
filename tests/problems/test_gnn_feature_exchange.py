"""GNNFeatureExchange against rows picked one by one, by the explicit formula."""

import pytest
import torch

from pkb_gym.engine.problem.rules import as_integers
from tests.problems.support import Run, find_problem, make_axes, run_reference


def oracle(run: Run, rank: int) -> list[torch.Tensor]:
    """out block i, row t = features_q[ids_q[A_q(j) + t]] with q = (r+i) mod n, j = (n-i) mod n."""
    n = run.axes[rank].W
    rows = []
    for i in range(n):
        q, j = (rank + i) % n, (n - i) % n
        received = run.axes[q]["counts_received"]
        assert run.axes[rank]["counts_sent"][i] == received[j], "lists agree"
        begin = sum(received[:j])
        ids = run.args[q]["seed_inverse_ids"][begin : begin + received[j]].tolist()
        rows += [run.args[q]["local_features"][seed] for seed in ids]
    return rows


def assert_exact(run: Run) -> None:
    for rank, outputs in enumerate(run.outputs):
        rows = oracle(run, rank)
        assert len(rows) == len(outputs["out"])
        for row, got in zip(rows, outputs["out"], strict=True):
            assert torch.equal(as_integers(row), as_integers(got))
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3), (4, 5)])
def test_every_row_arrives(world_size: int, trial: int) -> None:
    assert_exact(run_reference("GNNFeatureExchange", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_rows_arrive(world_size: int) -> None:
    assert_exact(run_reference("GNNFeatureExchange", world_size=world_size, protocol="published"))


def test_nobody_asks() -> None:
    size = {"requests": ((0, 0), (0, 0))}
    run = run_reference("GNNFeatureExchange", world_size=2, size=size, protocol="published")
    assert run.outputs[0]["out"].shape == (0, 128)


def test_trials_cover_uneven_lists_sizes_and_rows() -> None:
    problem = find_problem("GNNFeatureExchange")
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(8)]
    assert all(any(len(set(ax["counts_sent"])) > 1 for ax in axes) for axes in trials)
    assert any(ax.R_in == 0 for axes in trials for ax in axes)
    assert any(0 in ax["counts_sent"] for axes in trials for ax in axes)
    assert all(len({ax.S for ax in axes}) > 1 for axes in trials)
    assert {axes[0]["row"] for axes in trials} == {(128,), (2, 64), ()}
    assert {axes[0]["group"] for axes in trials} == {None, ((0, 1, 2, 3),)}
    timed = make_axes(problem, size="published", trial=1, timed=True)[0]
    assert (timed["counts_sent"], timed.S, timed["group"]) == ((256,) * 4, 768, None)
    large = make_axes(problem, size="large", timed=True)
    assert all(32768 <= count <= 98304 for ax in large for count in ax["counts_sent"])
