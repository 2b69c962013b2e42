"""NeighborSampling against a walk over dictionaries in one process."""

import pytest
import torch

from tests.problems.support import Run, find_problem, make_axes, run_reference


def oracle(run: Run, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """The definition, node by node; every node's neighbours are looked up at its owner."""
    nodes = run.args[rank]["seed_nodes"].tolist()
    frontier, edges = list(nodes), []
    for k in run.axes[rank]["fanouts"]:
        found = []
        for v in frontier:
            owner = run.args[int(run.args[rank]["node_to_rank"][v])]
            begin, end = owner["local_adj_row_ptr"][v : v + 2].tolist()
            taken = list(range(begin, end))[: None if k < 0 else k]
            found += [(int(owner["local_adj_col"][e]), v, e) for e in taken]
        if not found:
            break
        known = len(nodes)
        nodes = list(dict.fromkeys(nodes + [neighbour for neighbour, _, _ in found]))
        frontier = nodes[known:]
        edges += found
    return (
        nodes,
        [nodes.index(neighbour) for neighbour, _, _ in edges],
        [nodes.index(asker) for _, asker, _ in edges],
        [e for _, _, e in edges],
    )


def assert_exact(run: Run) -> None:
    for rank, outputs in enumerate(run.outputs):
        expected = oracle(run, rank)
        for name, numbers in zip(("node", "row", "col", "edge"), expected, strict=True):
            assert outputs[name].tolist() == numbers, (rank, name)
    run.assert_passes_own_checks()


@pytest.mark.parametrize(("world_size", "trial"), [(1, 0), (2, 1), (2, 2), *((4, trial) for trial in range(7))])
def test_subgraph_is_that_of_one_process(world_size: int, trial: int) -> None:
    assert_exact(run_reference("NeighborSampling", world_size=world_size, trial=trial))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_published_ring(world_size: int) -> None:
    run = run_reference("NeighborSampling", world_size=world_size, protocol="published", size="published")
    if world_size > 1:
        assert {len(outputs["node"]) for outputs in run.outputs} == {527}
        assert {len(outputs["edge"]) for outputs in run.outputs} == {5170}
    assert_exact(run_reference("NeighborSampling", world_size=world_size, protocol="published"))


def test_repeated_seeds_shorten_the_next_frontier() -> None:
    ring = {"N": 9, "degrees": (1,), "S": 3, "fanouts": (2, 2), "ring": True, "seeds": (3,)}
    ptr = torch.tensor([0, 0, 0, 0, 2, 2, 2, 2, 4, 5, 5]).clamp(max=5)[:10]
    args = [
        {
            "seed_nodes": torch.tensor([3, 3, 5]),
            "local_adj_row_ptr": ptr,  # 3 -> 7 8, 7 -> 0 1, 8 -> 3
            "local_adj_col": torch.tensor([7, 8, 0, 1, 3, 0, 0, 0, 0]),
            "node_to_rank": torch.zeros(9, dtype=torch.int64),
        }
    ]
    run = run_reference("NeighborSampling", world_size=1, size=ring, protocol="published", args=args)
    got = {name: value.tolist() for name, value in run.outputs[0].items()}
    assert got["node"] == [3, 5, 7, 8]
    assert got["edge"] == [0, 1, 0, 1, 4]  # only 8 is expanded
    assert got["col"] == [0, 0, 0, 0, 3]


def test_no_edges_keep_the_seeds_with_their_repeats() -> None:
    run = run_reference("NeighborSampling", world_size=2, size={"N": 64, "S": 8, "fanouts": (0, 3)}, trial=2)
    assert run.axes[0]["repeated"]
    for args, outputs in zip(run.args, run.outputs, strict=True):
        assert torch.equal(outputs["node"], args["seed_nodes"])
        assert outputs["edge"].numel() == 0


def test_trials_cover_every_case() -> None:
    problem = find_problem("NeighborSampling")
    trials = [make_axes(problem, size="published", trial=trial) for trial in range(7)]
    assert {axes[0]["fanouts"] for axes in trials} == {(10, 5), (-1, 5), (10, 0, 5), (10, 5, 1), (0, 5)}
    assert any(ax.S_r == 0 for axes in trials for ax in axes)
    assert [axes[0]["repeated"] for axes in trials].count(True) == 2
    unsampled = run_reference("NeighborSampling", world_size=2, trial=6)
    for args, outputs in zip(unsampled.args, unsampled.outputs, strict=True):
        assert torch.equal(outputs["node"], args["seed_nodes"]) and len(args["seed_nodes"].unique()) < len(
            args["seed_nodes"]
        )
    assert all(sum(axes[0]["owned"]) == 10_000 for axes in trials)
    run = run_reference("NeighborSampling", world_size=2, trial=0)
    owner = run.args[0]["node_to_rank"]
    for rank, args in enumerate(run.args):
        degree = args["local_adj_row_ptr"].diff()
        assert not degree[owner != rank].any(), "a rank knows its own nodes alone"
        assert (degree[owner == rank] == 0).any()
        assert len(args["seed_nodes"].unique()) == len(args["seed_nodes"])


def test_published_cost() -> None:
    problem = find_problem("NeighborSampling")
    ring = problem.cost(make_axes(problem, size="published", protocol="published")[0])
    assert ring.memory_bytes == 186_280
    assert ring.link_in_bytes == ring.link_out_bytes == 0, "every rank holds the whole graph"
    spread = problem.cost(problem.axes(size="published", world_size=4, rank=0))
    run = run_reference("NeighborSampling", world_size=2, size="published", timed=True)
    least = problem.cost(run.axes[0])
    E, V = len(run.outputs[0]["edge"]), len(run.outputs[0]["node"])
    assert least.memory_bytes == pytest.approx(8 * 512 + 8 * E + 8 * (V + 3 * E), rel=0.4)
    assert 0 < least.link_in_bytes < spread.link_in_bytes
