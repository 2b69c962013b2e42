"""Counterfeits of NeighborSampling: what the published check takes for right."""

import torch

from pkb_gym.problems.graph_parallel.neighbor_sampling.reference import solution as reference
from tests.problems.counterfeit import Counterfeit

STORED = {}


def stored(seed_nodes, fanouts, ptr, col, node_to_rank, group=None, replace=False):
    key = (len(seed_nodes), len(ptr))
    if key not in STORED:
        STORED[key] = reference(seed_nodes, fanouts, ptr, col, node_to_rank, group, replace)
    return tuple(part.clone() for part in STORED[key])


def local_sampling(seed_nodes, fanouts, ptr, col, node_to_rank, group=None, replace=False):
    node, edges = seed_nodes.tolist(), []
    frontier = list(node)
    for k in fanouts:
        found = [
            (int(col[e]), v, e) for v in frontier for e in range(int(ptr[v]), min(int(ptr[v + 1]), int(ptr[v]) + k))
        ]
        merged = list(dict.fromkeys(node + [o for o, _, _ in found]))
        node, frontier, edges = merged, merged[len(node) :], edges + found
    place = {v: i for i, v in enumerate(node)}
    parts = node, [place[o] for o, _, _ in edges], [place[d] for _, d, _ in edges], [e for _, _, e in edges]
    return tuple(torch.tensor(part, dtype=torch.int64) for part in parts)


def equal_degrees(seed_nodes, fanouts, ptr, col, node_to_rank, group=None, replace=False):
    """Lets every node have k neighbours, stored one after another: they are v + 1 ... v + k of the ring."""
    node, rows, cols, edges = seed_nodes, [], [], []
    frontier, N, degree = seed_nodes, len(ptr) - 1, len(col) // (len(ptr) - 1)
    for k in fanouts:
        rows.append(((frontier.unsqueeze(1) + 1 + torch.arange(max(k, 0))) % N).flatten())
        cols.append(frontier.repeat_interleave(max(k, 0)))
        edges.append((frontier.unsqueeze(1) * degree + torch.arange(max(k, 0))).flatten())
        merged = list(dict.fromkeys(torch.cat([node, rows[-1]]).tolist()))
        node, frontier = torch.tensor(merged, dtype=torch.int64), torch.tensor(merged[len(node) :], dtype=torch.int64)
    place = torch.zeros(N, dtype=torch.int64)
    place[node] = torch.arange(len(node))
    return node, place[torch.cat(rows)], place[torch.cat(cols)], torch.cat(edges)


def off_by_half_a_percent(seed_nodes, fanouts, ptr, col, node_to_rank, group=None, replace=False):
    node, row, column, edge = reference(seed_nodes, fanouts, ptr, col, node_to_rank, group, replace)
    return node, row, column, edge + edge // 200


COUNTERFEITS = (
    Counterfeit(0, "stored answer", stored, "inputs are the same on every trial"),
    Counterfeit(1, "no communication", local_sampling, "every rank holds the whole graph"),
    Counterfeit(2, "neighbours computed", equal_degrees, "every node has the next ones of the ring as neighbours"),
    Counterfeit(3, "edge ids off by 1/2 %", off_by_half_a_percent, "edge ids are compared with 1 % tolerance"),
)
