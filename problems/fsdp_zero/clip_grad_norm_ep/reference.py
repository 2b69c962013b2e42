import torch
import torch.distributed as dist


def solution(
    non_ep_grad_tensors: list[torch.Tensor | None],
    ep_grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    ep_size: int = 1,
    fsdp_group: dist.ProcessGroup | None = None,
    ep_fsdp_group: dist.ProcessGroup | None = None,
    ep_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clips dense and expert gradients, in place, by their common norm over all ranks.

    Args:
        non_ep_grad_tensors: this rank's shards of the dense gradients, any shapes, None where a parameter has none.
        ep_grad_tensors: this rank's shards of the expert gradients, likewise; always divided by ep_size.
        max_norm: gradients are scaled down to this norm where theirs is larger.
        norm_type: p of the norm, 0 < p < inf.
        ep_size: expert-parallel size.
        fsdp_group: sums the dense part; None skips the sum.
        ep_fsdp_group: sums the expert part first; None skips the sum.
        ep_group: sums the expert part next; None skips the sum.

    Returns:
        0-dim float32, the norm before clipping, after the division of the expert gradients.
    """
    if ep_size > 1 and ep_grad_tensors:
        for g in ep_grad_tensors:
            if g is not None:
                g.mul_(1.0 / ep_size)

    device = rank_device([*non_ep_grad_tensors, *ep_grad_tensors])
    dense = power_sum(non_ep_grad_tensors, norm_type, device)
    if fsdp_group is not None:
        dist.all_reduce(dense, op=dist.ReduceOp.SUM, group=fsdp_group)
    expert = power_sum(ep_grad_tensors, norm_type, device)
    if ep_fsdp_group is not None:
        dist.all_reduce(expert, op=dist.ReduceOp.SUM, group=ep_fsdp_group)
    if ep_group is not None:
        dist.all_reduce(expert, op=dist.ReduceOp.SUM, group=ep_group)

    total_norm = (dense + expert) ** (1.0 / norm_type)
    coef = torch.where(total_norm > max_norm, max_norm / total_norm, 1.0)  # no branch: the host does not wait
    for g in [*non_ep_grad_tensors, *ep_grad_tensors]:
        if g is not None:
            g.mul_(coef)
    return total_norm


def power_sum(grads: list[torch.Tensor | None], p: float, device: torch.device) -> torch.Tensor:
    """The sum of |x|^p over all elements, 0-dim float32; 0 where there are none."""
    total = torch.zeros((), dtype=torch.float32, device=device)
    for g in grads:
        if g is not None:
            total += torch.linalg.vector_norm(g, p, dtype=torch.float32) ** p
    return total


def rank_device(grads: list[torch.Tensor | None]) -> torch.device:
    """The device of the first gradient; the current one where this rank has none."""
    for g in grads:
        if g is not None:
            return g.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
