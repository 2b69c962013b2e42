import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    W1: torch.Tensor,
    b1: torch.Tensor,
    W2: torch.Tensor,
    b2: torch.Tensor,
    exp_avg_part: torch.Tensor,
    exp_avg_sq_part: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """One training step of a two-layer MLP; each rank keeps its slice of gradients and Adam's state (ZeRO stage 2).

    The flat parameters are W1, b1, W2, b2, each row-major: Pn elements, of which rank r owns r*part .. (r+1)*part-1.

    Args:
        X_local: (n, d_in), this rank's rows of the batch.
        y_local: (n, d_out), their targets.
        W1: (hid, d_in), first layer's weight; of all parameters rank 0's count.
        b1: (hid,), its bias.
        W2: (d_out, hid), second layer's weight.
        b2: (d_out,), its bias.
        exp_avg_part: (part,), Adam's first moment of this rank's slice.
        exp_avg_sq_part: (part,), its second moment.
        lr: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        step: number of this step, at least 1.

    Returns:
        Updated W1, b1, W2, b2, the same on every rank, and this rank's updated moments.
    """
    assert step >= 1, f"step must be at least 1, got {step}"
    world_size, rank = dist.get_world_size(), dist.get_rank()
    shapes = [W1.shape, b1.shape, W2.shape, b2.shape]
    flat = torch.cat([p.flatten() for p in (W1, b1, W2, b2)])
    dist.broadcast(flat, src=0)
    part = exp_avg_part.numel()
    assert part * world_size == flat.numel(), f"{flat.numel()} parameters, {world_size} parts of {part}"

    params = [p.requires_grad_() for p in unflatten(flat, shapes)]
    W1, b1, W2, b2 = params
    hidden = torch.relu(F.linear(X_local, W1, b1))
    loss = F.mse_loss(F.linear(hidden, W2, b2), y_local)

    flat_grad = torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, params)])
    grad = torch.empty_like(exp_avg_part)
    dist.reduce_scatter_tensor(grad, flat_grad, op=dist.ReduceOp.SUM)
    grad.div_(world_size)

    m = exp_avg_part.mul(beta1).add_(grad, alpha=1 - beta1)
    v = exp_avg_sq_part.mul(beta2).addcmul_(grad, grad, value=1 - beta2)
    denom = (v / (1 - beta2**step)).sqrt_().add_(eps)
    new_part = flat[rank * part : (rank + 1) * part] - lr * (m / (1 - beta1**step) / denom)

    new_flat = torch.empty_like(flat)
    dist.all_gather_into_tensor(new_flat, new_part)
    return *unflatten(new_flat, shapes), m, v


def unflatten(flat: torch.Tensor, shapes: list[torch.Size]) -> list[torch.Tensor]:
    """Views of a flat buffer with the given shapes, one after another."""
    return [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]
