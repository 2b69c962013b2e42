from itertools import pairwise

import torch
import torch.distributed as dist


def gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Gathers x (k,) of every rank to (W * k,)."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts)


def exchange(x: torch.Tensor, send_counts: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Sends the first send_counts[0] elements of x to rank 0, and so on; returns what came, in order of the source."""
    counts = torch.tensor(send_counts, device=x.device)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    receive_counts = received.tolist()
    out = x.new_empty(sum(receive_counts))
    dist.all_to_all_single(out, x, receive_counts, send_counts, group=group)
    return out


def choose_splitters(
    local: torch.Tensor, active: list[int], group: dist.ProcessGroup | None
) -> list[tuple[float, int, int]]:
    """Agrees on p - 1 splitters (value, active index, position) from p regular samples of every sorted shard."""
    p, n = len(active), local.numel()
    r = dist.get_rank(group)
    positions = [(i + 1) * n // p - 1 for i in range(p)] if n > p else list(range(n))
    padding = p - len(positions)
    values = local.new_full((p,), torch.inf)
    values[: len(positions)] = local[positions]
    owners = [active.index(r)] * len(positions) + [-1] * padding if n else [-1] * p
    all_values = gather(values, group).tolist()
    all_owners = gather(torch.tensor(owners, device=local.device), group).tolist()
    all_positions = gather(torch.tensor(positions + [-1] * padding, device=local.device), group).tolist()
    samples = sorted(s for s in zip(all_values, all_owners, all_positions, strict=True) if s[1] >= 0)
    u = len(samples)
    return [samples[min(max((b + 1) * u // p - 1, 0), u - 1)] for b in range(p - 1)]


def cut_at_splitters(local: torch.Tensor, splitters: list[tuple[float, int, int]], owner: int) -> list[int]:
    """Sizes of the buckets of a sorted shard; equal values are ordered by (active index, position)."""
    bounds = [0]
    for value, splitter_owner, position in splitters:
        if owner == splitter_owner:
            bound = position + 1
        else:
            bound = int(torch.searchsorted(local, value, right=owner < splitter_owner))
        bounds.append(min(max(bound, bounds[-1]), local.numel()))
    bounds.append(local.numel())
    return [high - low for low, high in pairwise(bounds)]


@torch.no_grad()
def solution(local_shard: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Sorts an array that is spread unevenly over the ranks, by regular sampling.

    Args:
        local_shard: (n_r,), unsorted values of this rank, possibly none; N is the sum of all n_r.
        group: the ranks that hold the array; None means all.

    Returns:
        Elements lo_r .. lo_r + n'_r - 1 of the ascending sort of all N values, where
        n'_r = N // W + (1 if r < N % W else 0) and lo_r = r * (N // W) + min(r, N % W).
    """
    W, r = dist.get_world_size(group), dist.get_rank(group)
    local = local_shard.sort().values
    sizes = gather(torch.tensor([local.numel()], device=local.device), group).tolist()
    active = [q for q in range(W) if sizes[q] > 0]
    if not active:
        return local

    # Bucket b goes to the b-th active rank.
    splitters = choose_splitters(local, active, group)
    send_counts = [0] * W
    if local.numel():
        for q, size in zip(active, cut_at_splitters(local, splitters, active.index(r)), strict=True):
            send_counts[q] = size
    bucket = exchange(local, send_counts, group).sort().values

    # The buckets are in rank order; move their ends to where the even pieces begin.
    bucket_sizes = gather(torch.tensor([bucket.numel()], device=local.device), group).tolist()
    begin = sum(bucket_sizes[:r])
    end = begin + bucket.numel()
    N = sum(sizes)
    cuts = [q * (N // W) + min(q, N % W) for q in range(W + 1)]
    send_counts = [max(0, min(end, cuts[q + 1]) - max(begin, cuts[q])) for q in range(W)]
    return exchange(bucket, send_counts, group)
