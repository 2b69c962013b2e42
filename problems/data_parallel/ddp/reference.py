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
    exp_avg_W1: torch.Tensor,
    exp_avg_b1: torch.Tensor,
    exp_avg_W2: torch.Tensor,
    exp_avg_b2: torch.Tensor,
    exp_avg_sq_W1: torch.Tensor,
    exp_avg_sq_b1: torch.Tensor,
    exp_avg_sq_W2: torch.Tensor,
    exp_avg_sq_b2: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> tuple[torch.Tensor, ...]:
    """One data-parallel training step of a two-layer MLP with Adam; rank 0's parameters and moments count.

    Args:
        X_local: (n, d_in), this rank's rows of the batch.
        y_local: (n, d_out), their targets.
        W1: (hid, d_in), first layer's weight.
        b1: (hid,), its bias.
        W2: (d_out, hid), second layer's weight.
        b2: (d_out,), its bias.
        exp_avg_W1: first moment of W1.
        exp_avg_b1: first moment of b1.
        exp_avg_W2: first moment of W2.
        exp_avg_b2: first moment of b2.
        exp_avg_sq_W1: second moment of W1.
        exp_avg_sq_b1: second moment of b1.
        exp_avg_sq_W2: second moment of W2.
        exp_avg_sq_b2: second moment of b2.
        lr: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        step: number of this step, at least 1.

    Returns:
        Updated W1, b1, W2, b2, their first moments, their second moments: 12 tensors, the same on every rank.
    """
    assert step >= 1, f"step must be at least 1, got {step}"
    params = broadcast_from_root([W1, b1, W2, b2])
    exp_avgs = broadcast_from_root([exp_avg_W1, exp_avg_b1, exp_avg_W2, exp_avg_b2])
    exp_avg_sqs = broadcast_from_root([exp_avg_sq_W1, exp_avg_sq_b1, exp_avg_sq_W2, exp_avg_sq_b2])

    W1, b1, W2, b2 = (p.requires_grad_() for p in params)
    hidden = torch.relu(F.linear(X_local, W1, b1))
    loss = F.mse_loss(F.linear(hidden, W2, b2), y_local)

    flat_grad = torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, params)])
    dist.all_reduce(flat_grad, op=dist.ReduceOp.SUM)
    flat_grad.div_(dist.get_world_size())

    bias_correction1 = 1 - beta1**step
    bias_correction2 = 1 - beta2**step
    with torch.no_grad():
        for p, g, m, v in zip(params, unflatten(flat_grad, params), exp_avgs, exp_avg_sqs, strict=True):
            p.grad = g
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            denom = (v / bias_correction2).sqrt_().add_(eps)
            p.sub_(lr * (m / bias_correction1 / denom))
    return *params, *exp_avgs, *exp_avg_sqs


def broadcast_from_root(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of rank 0's tensors, sent in one flat buffer."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.broadcast(flat, src=0)
    return unflatten(flat, tensors)


def unflatten(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of a flat buffer, shaped as the tensors in `like`."""
    return [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]
