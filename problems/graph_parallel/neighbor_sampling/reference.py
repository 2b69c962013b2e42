import torch
import torch.distributed as dist


def first_occurrences(ids: torch.Tensor) -> torch.Tensor:
    """Drops later repeats and keeps the order."""
    values, which = ids.unique(return_inverse=True)
    place = torch.arange(len(ids), device=ids.device)
    first = torch.full_like(values, len(ids)).scatter_reduce_(0, which, place, "amin")
    return ids[first.sort().values]


def positions(ids: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    """Where each id stands in `node`."""
    values, place = node.sort()
    return place[torch.searchsorted(values, ids)]


def exchange(x: torch.Tensor, send: list[int], recv: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Sends pieces of x, `send` elements to each rank; returns what came, `recv` elements from each."""
    out = x.new_empty(sum(recv))
    dist.all_to_all_single(out, x, recv, send, group=group)
    return out


@torch.no_grad()
def solution(
    seed_nodes: torch.Tensor,
    fanouts: list[int],
    local_adj_row_ptr: torch.Tensor,
    local_adj_col: torch.Tensor,
    node_to_rank: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    replace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples a subgraph around this rank's seeds, hop by hop; a node's owner knows its neighbours.

    Nothing is random: of a node's neighbours the first min(k, degree) are taken, all of them if k < 0.

    Args:
        seed_nodes: (S_r,), global ids, S_r may differ by rank and be 0.
        fanouts: neighbours k to be taken per node at each hop, equal on all ranks.
        local_adj_row_ptr: (N + 1,), by global id, offsets into this rank's local_adj_col.
        local_adj_col: (nnz_r,), neighbours of the nodes that this rank owns; those of others are not to be used.
        node_to_rank: (N,), owner of each node.
        group: None means all ranks.
        replace: unused.

    Returns:
        node (V,), the seeds, then nodes in order of first discovery; and for each of E sampled edges, in order of hop,
        frontier and neighbour: row, the neighbour's position in node; col, the position of the node it was sampled
        for; edge, its position in the owner's local_adj_col.
    """
    n = dist.get_world_size(group)
    node = frontier = seed_nodes.long()
    hops = []
    for k in fanouts:
        # Every rank takes part in all hops, even with nothing left to ask, as others may ask it.
        owner = node_to_rank[frontier].long()
        order = torch.argsort(owner, stable=True)
        asks = torch.bincount(owner, minlength=n)
        asked = torch.empty_like(asks)
        dist.all_to_all_single(asked, asks, group=group)
        send, recv = asks.tolist(), asked.tolist()
        requests = exchange(frontier[order], send, recv, group)

        begin = local_adj_row_ptr[requests]
        degree = local_adj_row_ptr[requests + 1] - begin
        take = degree if k < 0 else degree.clamp(max=k)
        first = take.cumsum(0) - take
        edges = torch.arange(int(take.sum()), device=take.device) + (begin - first).repeat_interleave(take)

        taken = exchange(take, recv, send, group)
        reply_send = [int(part.sum()) for part in take.split(recv)]
        reply_recv = [int(part.sum()) for part in taken.split(send)]
        neighbours = exchange(local_adj_col[edges], reply_send, reply_recv, group)
        edges = exchange(edges, reply_send, reply_recv, group)

        # Back to frontier order.
        asker = order.repeat_interleave(taken)
        back = torch.argsort(asker, stable=True)
        hops.append((neighbours[back], frontier[asker[back]], edges[back]))
        if len(edges) == 0:
            frontier = frontier[:0]
            continue
        merged = first_occurrences(torch.cat([node, neighbours[back]]))
        node, frontier = merged, merged[len(node) :]

    if not hops:
        return node.clone(), node[:0], node[:0], node[:0]
    neighbours, askers, edges = (torch.cat(parts) for parts in zip(*hops, strict=True))
    return node.clone(), positions(neighbours, node), positions(askers, node), edges
