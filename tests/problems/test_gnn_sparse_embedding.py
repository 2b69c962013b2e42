"""GNNSparseEmbedding against pairs handed out one by one."""

import pytest
import torch

from pkb_gym.engine.problem.rules import as_integers
from tests.problems.support import Run, find_problem, make_axes, run_reference


def assert_exact(run: Run) -> None:
    W = run.axes[0].W
    bits = torch.int64 if run.args[0]["value"].dtype == torch.float64 else torch.int16
    for rank, outputs in enumerate(run.outputs):
        ids, rows = [], []
        for args in run.args:
            for node, row in zip(args["idx"].tolist(), as_integers(args["value"]), strict=True):
                if (node - rank) % W == 0:
                    ids.append(node)
                    rows.append(row)
        assert outputs["recv_idx"].tolist() == ids
        expected = torch.stack(rows) if rows else torch.empty(0, run.axes[rank].D, dtype=bits)
        assert torch.equal(as_integers(outputs["recv_value"]), expected)
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (2, 8), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_pairs_reach_their_owners_in_order(world_size: int, trial: int) -> None:
    assert_exact(run_reference("GNNSparseEmbedding", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_pairs_reach_their_owners(world_size: int) -> None:
    assert_exact(run_reference("GNNSparseEmbedding", world_size=world_size, protocol="published", size="published"))


def test_minus_one_belongs_to_the_last_rank_and_repeats_stay() -> None:
    ids, none = torch.tensor([-1, 4, -1, -4]), torch.empty(0, dtype=torch.int64)
    values = torch.arange(8).view(4, 2).bfloat16()
    args = [{"idx": none, "value": values[:0]}, {"idx": ids, "value": values}]
    size = {"D": 2, "pairs": ((0, 0), (2, 2))}
    run = run_reference("GNNSparseEmbedding", world_size=2, size=size, protocol="published", args=args)
    assert [outputs["recv_idx"].tolist() for outputs in run.outputs] == [[4, -4], [-1, -1]]
    assert run.outputs[1]["recv_value"].tolist() == [[0.0, 1.0], [4.0, 5.0]]


def test_trials_cover_skew_empty_ranks_and_negative_ids() -> None:
    problem = find_problem("GNNSparseEmbedding")
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(9)]
    assert any(sum(ax.Z for ax in axes) > 0 and any(ax.Z == 0 for ax in axes) for axes in trials)
    assert sum(ax.Z for ax in trials[8]) == 0
    assert max(ax.Y / ax.Z for axes in trials for ax in axes if ax.Z) > 2
    assert {axes[0]["negative"] for axes in trials} == {False, True}
    assert (run_reference("GNNSparseEmbedding", world_size=2, trial=2).args[0]["idx"] < 0).any()
    timed = make_axes(problem, size="published", trial=1, timed=True)
    assert [ax.Z for ax in timed] == [1024] * 4
    assert all(900 < ax.Y < 1150 for ax in timed)
    assert sum(ax.Y for ax in timed) == 4096


def test_one_id_off_by_one_is_refused_and_was_accepted() -> None:
    for protocol, refused in (("published", 0), ("robust", 1)):
        run = run_reference("GNNSparseEmbedding", world_size=2, size="published", protocol=protocol)
        bad = run.outputs[1]["recv_idx"].clone()
        bad[bad.argmax()] += 2
        assert run.wrong(1, "recv_idx", bad).sum() == refused
