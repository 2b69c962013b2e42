"""GNNSparseFeatureFetch against a lookup in the joined table, in float64."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def assert_close(run: Run) -> None:
    table = torch.cat([args["local_embedding_shard"] for args in run.args]).double()
    assert len(table) == run.axes[0].T
    for args, outputs in zip(run.args, run.outputs, strict=True):
        rows = [table[node] for node in args["input_node_ids"].tolist()]
        expected = torch.stack(rows) @ args["proj_matrix"].double() if rows else torch.empty(0, run.axes[0].O)
        torch.testing.assert_close(outputs["out"].double(), expected.double(), rtol=1e-2, atol=1e-2)
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 5)])
def test_rows_are_fetched_and_projected(world_size: int, trial: int) -> None:
    assert_close(run_reference("GNNSparseFeatureFetch", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_ids(world_size: int) -> None:
    run = run_reference("GNNSparseFeatureFetch", world_size=world_size, protocol="published")
    assert_close(run)
    owners = run.args[0]["input_node_ids"] // run.axes[0].S
    assert torch.bincount(owners).tolist() == [40 // world_size] * world_size


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_float64_product_passes_and_the_neighbours_matrix_does_not(dtype: str) -> None:
    run = run_reference("GNNSparseFeatureFetch", world_size=2, dtype=dtype)
    table = torch.cat([args["local_embedding_shard"] for args in run.args]).double()
    rows = table[run.args[0]["input_node_ids"]]
    right, wrong = (rows @ run.args[rank]["proj_matrix"].double() for rank in (0, 1))
    assert not run.wrong(0, "out", right.to(run.outputs[0]["out"].dtype)).any()
    assert run.wrong(0, "out", wrong.to(run.outputs[0]["out"].dtype)).float().mean() > 0.9


def test_trials_cover_short_shards_laws_and_unequal_queries() -> None:
    problem = find_problem("GNNSparseFeatureFetch")
    trials = [make_axes(problem, trial=trial) for trial in range(6)]
    assert {axes[0]["law"] for axes in trials} == {"uniform", "power", "one owner"}
    assert any(ax.rows == 0 for axes in trials for ax in axes)
    assert any(len({ax.rows for ax in axes}) > 1 for axes in trials)
    assert any(ax.Q == 0 for axes in trials for ax in axes)
    timed = make_axes(problem, trial=1, timed=True)
    assert [ax.rows for ax in timed] == [63, 63, 63, 61]
    assert [ax.Q for ax in timed] == [40, 41, 42, 43]
    large = {W: problem.axes(size="large", world_size=W, rank=0).T for W in (1, 2, 4, 8)}
    assert large == {1: 27_750_000, 2: 55_500_000, 4: 111_000_000, 8: 111_000_000}


def test_published_cost() -> None:
    problem = find_problem("GNNSparseFeatureFetch")
    exact = problem.cost(make_axes(problem, size="published", protocol="published")[0])
    assert (exact.memory_bytes, exact.link_in_bytes, exact.matrix_flops) == (20_771_072, 7_680_000, 2_621_440_000)
    uniform = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    assert uniform.link_in_bytes == pytest.approx(7_680_000, rel=1e-3)
    assert uniform.memory_bytes == pytest.approx(20_771_072, rel=1e-3)
