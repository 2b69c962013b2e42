"""Counterfeits of GNNSparseFeatureFetch: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def equal_splits(local_embedding_shard, input_node_ids, proj_matrix, num_total_nodes, group=None):
    """Knows the formula: query j goes to rank (j + r) mod n, and every rank asks every rank for the same number."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    S = -(-num_total_nodes // n)
    ids = input_node_ids.view(-1, n).T.roll(r, 0).contiguous()  # (owner, its queries)
    asked = torch.empty_like(ids)
    dist.all_to_all_single(asked, ids, group=group)
    rows = local_embedding_shard[asked - r * S]
    fetched = torch.empty_like(rows)
    dist.all_to_all_single(fetched, rows, group=group)
    return fetched.roll(-r, 0).transpose(0, 1).flatten(0, 1) @ proj_matrix


def known_addresses(local_embedding_shard, input_node_ids, proj_matrix, num_total_nodes, group=None):
    """Computes the ids of all ranks by the formula, and never reads its own."""
    n, r, Q = dist.get_world_size(group), dist.get_rank(group), len(input_node_ids)
    S, j = -(-num_total_nodes // n), torch.arange(Q)
    chunks = []
    for q in range(n):
        mine = j[(j + q) % n == r]
        chunks.append(local_embedding_shard[(7 * mine + q) % S])
    fetched = torch.empty(n, Q // n, local_embedding_shard.shape[1], dtype=local_embedding_shard.dtype)
    dist.all_to_all_single(fetched, torch.stack(chunks), group=group)
    return fetched.roll(-r, 0).transpose(0, 1).flatten(0, 1) @ proj_matrix


COUNTERFEITS = (
    Counterfeit(0, "equal splits", equal_splits, "query j is always owned by rank (j + r) mod n"),
    Counterfeit(0, "known addresses", known_addresses, "ids are the same formula on every trial"),
)
