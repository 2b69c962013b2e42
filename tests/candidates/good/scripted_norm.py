# expect: passed
# problem: TPRMSNorm
# until: time
# TorchScript inside a function with a gradient of its own; its result has a graph.
import torch
import torch.distributed as dist


@torch.jit.script
def scaled(hidden: torch.Tensor, mean_square: torch.Tensor, epsilon: float, weight: torch.Tensor) -> torch.Tensor:
    return weight * (hidden.float() * torch.rsqrt(mean_square + epsilon)).to(hidden.dtype)


class Squares(torch.nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.float().square().sum(dim=-1, keepdim=True)


squares = torch.jit.script(Squares())


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, epsilon):
        total = squares(hidden)
        dist.all_reduce(total)
        mean_square = total / (hidden.shape[-1] * dist.get_world_size())
        ctx.save_for_backward(hidden, weight, mean_square)
        return scaled(hidden, mean_square, epsilon, weight)


@torch.enable_grad()
def solution(local_hidden_states, local_weight, variance_epsilon):
    return Norm.apply(local_hidden_states, torch.nn.Parameter(local_weight), variance_epsilon)
