# expect: passed
# problem: LayerNormBackward
# until: time
"""The gradient by autograd itself, and one fused all_reduce of both."""
import torch
import torch.distributed as dist


@torch.enable_grad()
def solution(X_hat, dY):
    H = X_hat.shape[1]
    gamma = torch.ones(H, dtype=torch.float64, requires_grad=True)
    beta = torch.zeros(H, dtype=torch.float64, requires_grad=True)
    y = X_hat.double() * gamma + beta
    y.backward(dY.double())
    both = torch.stack([gamma.grad, beta.grad])
    work = dist.all_reduce(both, async_op=True)
    work.wait()
    return tuple(both.to(X_hat.dtype).unbind(0))
