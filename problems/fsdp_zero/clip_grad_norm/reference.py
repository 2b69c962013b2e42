import torch
import torch.distributed as dist


def solution(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clips sharded gradients, in place, by their norm over all ranks of a group.

    Args:
        grad_tensors: this rank's shards, any shapes, None where a parameter has no gradient; lists differ by rank.
        max_norm: gradients are scaled down to this norm where theirs is larger.
        norm_type: p of the norm, 0 < p < inf.
        fsdp_group: sums the norm over its ranks; None skips the sum.

    Returns:
        0-dim float32, the norm before clipping.
    """
    total = torch.zeros((), dtype=torch.float32, device=rank_device(grad_tensors))
    for g in grad_tensors:
        if g is not None:
            total += torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) ** norm_type
    if fsdp_group is not None:
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=fsdp_group)

    total_norm = total ** (1.0 / norm_type)
    coef = torch.where(total_norm > max_norm, max_norm / total_norm, 1.0)  # no branch: the host does not wait
    for g in grad_tensors:
        if g is not None:
            g.mul_(coef)
    return total_norm


def rank_device(grads: list[torch.Tensor | None]) -> torch.device:
    """The device of the first gradient; the current one where this rank has none."""
    for g in grads:
        if g is not None:
            return g.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
