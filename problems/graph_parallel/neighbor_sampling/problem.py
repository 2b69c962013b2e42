"""NeighborSampling: subgraphs around every rank's seeds, sampled hop by hop from a graph that is spread by nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
    with_link,
)

if TYPE_CHECKING:
    import torch

Ints = tuple[int, ...]


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds what each rank owns, its stored edges, its seeds, and the most nodes and edges that it may find."""
    W, N = ax.W, ax.N
    degrees, fanouts = ax.ints("degrees"), ax.ints("fanouts")
    owned = ax.ints_or_none("owned") or tuple(N // W + (rank < N % W) for rank in range(W))
    seeds = ax.ints_or_none("seeds") or (ax.S,) * W
    ring_degree = sum(degrees) // len(degrees)
    if ax.flag("ring"):
        stored, all_edges = [N * ring_degree] * W, N * ring_degree
    else:
        stored = [stored_edges(count, degrees) for count in owned]
        all_edges = sum(stored)
    frontier, most_edges = seeds[ax.r], 0
    for hop, k in enumerate(fanouts):
        # Only the first frontier may hold a node more than once.
        found = all_edges if k < 0 else k * frontier
        found = found if hop == 0 else min(found, all_edges)
        most_edges += found
        frontier = min(found, N)
    return {
        "owned": owned,
        "seeds": seeds,
        "S_r": seeds[ax.r],
        "ring_degree": ring_degree,
        "nnz": stored[ax.r],
        "ptr_len": N + 1,
        "most_edges": most_edges,
        "most_nodes": min(seeds[ax.r] + most_edges, seeds[ax.r] + N),
    }


def stored_edges(nodes: int, degrees: Ints) -> int:
    """Edges of so many nodes, whose degrees repeat a pattern."""
    return nodes // len(degrees) * sum(degrees) + sum(degrees[: nodes % len(degrees)])


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through the size's fanouts, a rank without seeds, repeated seeds, all neighbours, none, three hops.

    Then come repeated seeds that none is sampled for, which stay as they are. Nodes are unevenly owned.
    """
    if draw.timed:
        return {}
    W, fanouts = ax.W, ax.ints("fanouts")
    mode = draw.trial % 7
    seeds = [ax.S] * W if mode in (0, 2, 6) else [draw.randint(1, ax.S) for _ in range(W)]
    if mode in (1, 5) and W > 1:
        seeds[draw.randrange(W)] = 0
    changed = {
        3: (-1, fanouts[-1]) if ax.N <= 100_000 else fanouts,
        4: (fanouts[0], 0, fanouts[-1]),
        5: (fanouts[0], fanouts[-1], 1),
        6: (0, fanouts[-1]),
    }
    cuts = sorted(draw.randint(0, ax.N // 2) for _ in range(W - 1))
    extra = [high - low for low, high in zip([0, *cuts], [*cuts, ax.N // 2], strict=True)]
    rest = ax.N - ax.N // 2
    return {
        "owned": tuple(more + rest // W + (rank < rest % W) for rank, more in enumerate(extra)),
        "seeds": tuple(seeds),
        "fanouts": changed.get(mode, fanouts),
        "repeated": mode in (2, 6),
        "group": (tuple(range(W)),) if draw.trial % 2 else None,
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Random owners, skewed degrees, uniform neighbours; seeds without repeats unless the axes allow them."""
    import torch

    ax, device = make.ax, make.device
    N, owned = ax.N, ax.ints("owned")
    node_to_rank = torch.arange(ax.W, device=device).repeat_interleave(torch.tensor(owned, device=device))
    node_to_rank = node_to_rank[make.shared.permutation(N)]
    own = (node_to_rank == make.rank).nonzero().flatten()
    pattern = torch.tensor(ax["degrees"], device=device)
    degrees = pattern[torch.arange(len(own), device=device) % len(pattern)]
    ptr = torch.zeros(N + 1, dtype=torch.int64, device=device)
    ptr[own[make.permutation(len(own))] + 1] = degrees
    seeds = make.permutation(N)[: ax.S_r]
    if ax.flag("repeated"):
        seeds = seeds[make.randint(0, max(1, ax.S_r // 2), ax.S_r)]
    return seeds, ptr.cumsum(0), make.integers("local_adj_col", 0, N), node_to_rank


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """The whole ring on every rank; N a multiple of W, twice the seeds on a single rank."""
    return {"ring": True, "N": -(-ax.N // ax.W) * ax.W, "S": ax.S * (2 if ax.W == 1 else 1)}


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Neighbours of v are the next ones round the ring, all stored everywhere; v mod W owns v; nothing random."""
    import torch

    N, S, degree = make.ax.N, make.ax.S_r, make.ax.ring_degree
    nodes = torch.arange(N, device=make.device)
    col = (nodes.unsqueeze(1) + 1 + torch.arange(degree, device=make.device)) % N
    seeds = (make.rank * S + torch.arange(S, device=make.device)) % N
    return seeds, torch.arange(N + 1, device=make.device) * degree, col.flatten(), nodes % make.ax.W


def found_on(ax: Axes, rank: int) -> tuple[float, float, float]:
    """Expected frontiers, edges and nodes of a rank, summed over hops: F, E and V."""
    degrees, N = ax.ints("degrees"), ax.N
    frontier = nodes = float(ax.ints("seeds")[rank])
    frontiers = edges = 0.0
    for k in ax.ints("fanouts"):
        if ax.flag("ring"):
            found = frontier * (ax.ring_degree if k < 0 else min(k, ax.ring_degree))
            new = min(float(k), N - nodes) if found else 0.0
        else:
            found = frontier * sum(d if k < 0 else min(k, d) for d in degrees) / len(degrees)
            new = max(0.0, N - nodes) * (1 - (1 - 1 / N) ** found)
        frontiers, edges, nodes, frontier = frontiers + frontier, edges + found, nodes + new, max(0.0, new)
        if not found:
            break
    return frontiers, edges, nodes


def cost(ax: Axes) -> Cost:
    """Neighbours of what others own cross the link, with a start and a count for each node.

    Expectations over seeds and neighbours, which no kernel undercuts over many trials; repeated seeds count nothing.
    Where every rank holds the whole graph nothing crosses. Nodes may be looked up directly, so requests cost nothing.
    """
    if ax.flag("repeated"):
        return Cost()
    owned = ax.ints("owned")
    F, E, V = found_on(ax, ax.r)
    inward = (1 - owned[ax.r] / ax.N) * (8 * E + 16 * F)
    others = [found_on(ax, rank) for rank in range(ax.W) if rank != ax.r]
    outward = owned[ax.r] / ax.N * sum(8 * edges + 16 * asked for asked, edges, _ in others)
    return Cost(
        memory_bytes=8 * ax.S_r + 24 * F + 8 * E + 8 * (V + 3 * E),
        link_in_bytes=0 if ax.flag("ring") else inward,
        link_out_bytes=0 if ax.flag("ring") else outward,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the ids alone, of the edges that are expected; a switch may multicast them."""
    if ax.flag("ring") or ax.flag("repeated"):
        return with_link(cost(ax), 0, 0)
    _, edges, _ = found_on(ax, ax.r)
    return with_link(cost(ax), ax.itemsize * (1 - ax.ints("owned")[ax.r] / ax.N) * edges, 0)


MODES = {"owned": None, "seeds": None, "repeated": False, "ring": False, "replace": False, "group": None}
MEAN_16 = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 25, 34, 48, 64)
MEAN_25 = (0, 2, 3, 5, 6, 8, 9, 12, 15, 19, 24, 30, 39, 53, 74, 101)

PROBLEM = Problem(
    name="NeighborSampling",
    upstream="64_gnn_neighbor_sampling",
    category="graph_parallel",
    origin="PyTorch Geometric / pyg-lib distributed neighbour sampler",
    summary="Every rank starts from its own seed nodes and, hop by hop, asks the rank that owns each frontier node for "
    "that node's first k neighbours, building a relabelled subgraph.",
    weaknesses=(
        "Inputs are constant over trials: a stored answer passes.",
        "The whole graph sits on every rank: a solution without communication passes.",
        "On the ring nearly all neighbours are seeds, and degrees are equal: hop 2 and short lists hardly occur.",
        "Positions are compared as floats with 1 % tolerance.",
    ),
    no_capture_because="The sizes of all requests, replies and results depend on the sampled graph.",
    tags=("all_to_all", "ragged", "graph", "multi_hop"),
    dtypes=("float32",),
    # degrees: a pattern that the degrees of a rank's own nodes repeat, in random order; ring: the published graph.
    sizes={
        "tiny": {"N": 256, "degrees": tuple(range(9)), "S": 16, "fanouts": (4, 2), **MODES},
        "published": {"N": 10_000, "degrees": MEAN_16, "S": 512, "fanouts": (10, 5), **MODES},
        "large": {"N": 4_000_000, "degrees": MEAN_25, "S": 16384, "fanouts": (15, 10), **MODES},
    },
    args=(
        Tensor(
            "seed_nodes", ("S_r",), dtype="int64", about="global ids of the seeds; number may differ by rank, or be 0"
        ),
        Scalar("fanouts", "ints", about="neighbours taken per node at each hop; negative: all"),
        Tensor("local_adj_row_ptr", ("ptr_len",), dtype="int64", about="by global id, offsets into local_adj_col"),
        Tensor("local_adj_col", ("nnz",), dtype="int64", about="neighbours of the nodes that this rank owns"),
        Tensor("node_to_rank", ("N",), dtype="int64", about="owner of each node"),
        Group("group", about="None means all ranks"),
        Scalar("replace", "bool", about="unused"),
    ),
    outputs=(
        Output("node", ("?",), dtype="int64", capacity="most_nodes", about="seeds, then nodes in order of discovery"),
        Output(
            "row", ("?",), dtype="int64", capacity="most_edges", about="per edge, position in node of the neighbour"
        ),
        Output("col", ("?",), dtype="int64", capacity="most_edges", about="position in node of the node sampled for"),
        Output("edge", ("?",), dtype="int64", capacity="most_edges", about="position in the owner's local_adj_col"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Neighbours of foreign nodes come in, one id each, and all that is found is written. Seeds and neighbours are "
        "uniform, so that the expectation counts.",
        work=least_work,
    ),
)
