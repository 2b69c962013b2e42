from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    X_local: torch.Tensor,
    y_local: torch.Tensor,
    flat_param_shard: torch.Tensor,
    param_shapes: Sequence[tuple[int, ...]],
    exp_avg_shard: torch.Tensor,
    exp_avg_sq_shard: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One fully sharded training step of a two-layer MLP, with decoupled weight decay.

    The flat parameters are W1, b1, W2, b2, each row-major: W*p elements, of which rank r owns r*p .. (r+1)*p-1.

    Args:
        X_local: (n, d_in), this rank's rows of the batch.
        y_local: (n, d_out), their targets.
        flat_param_shard: (p,), this rank's slice of the parameters.
        param_shapes: shapes of W1, b1, W2, b2: (hid, d_in), (hid,), (d_out, hid), (d_out,).
        exp_avg_shard: (p,), Adam's first moment of the slice.
        exp_avg_sq_shard: (p,), its second moment.
        lr: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: shrinks the parameters by lr * weight_decay.
        step: number of this step, at least 1.

    Returns:
        This rank's updated parameters, first moment and second moment, (p,) each.
    """
    assert step >= 1, f"step must be at least 1, got {step}"
    world_size = dist.get_world_size()
    flat_param = flat_param_shard.new_empty(world_size * flat_param_shard.numel())
    dist.all_gather_into_tensor(flat_param, flat_param_shard)
    parts = flat_param.split([prod(shape) for shape in param_shapes])
    params = [part.view(shape).requires_grad_() for part, shape in zip(parts, param_shapes, strict=True)]

    W1, b1, W2, b2 = params
    hidden = torch.relu(F.linear(X_local, W1, b1))
    loss = F.mse_loss(F.linear(hidden, W2, b2), y_local)
    loss.backward()

    flat_grad = torch.cat([p.grad.flatten() for p in params])
    grad = torch.empty_like(flat_param_shard)
    dist.reduce_scatter_tensor(grad, flat_grad, op=dist.ReduceOp.SUM)
    grad.div_(world_size)

    m = exp_avg_shard.mul(beta1).add_(grad, alpha=1 - beta1)
    v = exp_avg_sq_shard.mul(beta2).addcmul_(grad, grad, value=1 - beta2)
    denom = (v / (1 - beta2**step)).sqrt_().add_(eps)
    update = m / (1 - beta1**step) / denom
    theta = flat_param_shard.add(update, alpha=-lr).add_(flat_param_shard, alpha=-lr * weight_decay)
    return theta, m, v
