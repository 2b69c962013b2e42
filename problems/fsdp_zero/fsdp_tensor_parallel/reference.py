from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F


@cache
def own_groups(n_tp: int, n_fsdp: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's tensor-parallel and FSDP group; all ranks make all groups, once."""
    rank = dist.get_rank()
    tp_groups = [dist.new_group(list(range(j * n_tp, (j + 1) * n_tp))) for j in range(n_fsdp)]
    fsdp_groups = [dist.new_group(list(range(i, n_tp * n_fsdp, n_tp))) for i in range(n_tp)]
    return tp_groups[rank // n_tp], fsdp_groups[rank % n_tp]


@torch.no_grad()
def solution(
    x_local: torch.Tensor,
    W1_shard: torch.Tensor,
    W2_shard: torch.Tensor,
    W3_shard: torch.Tensor,
    n_tp: int,
    n_fsdp: int,
) -> torch.Tensor:
    """A gated feed-forward layer, y = (silu(x W1) * (x W2)) W3, its weights split over two axes of ranks.

    Rank r has the tensor-parallel index i = r mod n_tp and the FSDP index j = r // n_tp. Ranks of equal j share their
    rows of x and add up their outputs; ranks of equal i gather each other's pieces of the weights.

    Args:
        x_local: (Bf, D), rows j*Bf .. (j+1)*Bf-1 of the batch.
        W1_shard: (Dj, Ft), rows j*Dj .. and columns i*Ft .. of W1 (D, F); Dj = D / n_fsdp, Ft = F / n_tp.
        W2_shard: (Dj, Ft), the same part of W2 (D, F).
        W3_shard: (Ft, Dj), rows i*Ft .. and columns j*Dj .. of W3 (F, D).
        n_tp: size of a tensor-parallel group.
        n_fsdp: size of an FSDP group; n_tp * n_fsdp is the world size.

    Returns:
        (Bf, D), the layer's output for the rows of x_local.
    """
    assert n_tp * n_fsdp == dist.get_world_size()
    tp_group, fsdp_group = own_groups(n_tp, n_fsdp)

    def gather(shard: torch.Tensor, dim: int) -> torch.Tensor:
        shards = [torch.empty_like(shard) for _ in range(n_fsdp)]
        dist.all_gather(shards, shard, group=fsdp_group)
        return torch.cat(shards, dim=dim)

    W1, W2, W3 = gather(W1_shard, 0), gather(W2_shard, 0), gather(W3_shard, 1)
    out = (F.silu(x_local @ W1) * (x_local @ W2)) @ W3
    dist.all_reduce(out, op=dist.ReduceOp.SUM, group=tp_group)
    return out
