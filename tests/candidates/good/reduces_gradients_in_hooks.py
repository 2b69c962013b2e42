# expect: passed
# problem: DDP
# Hooks reduce each gradient as soon as it is there, and an optimiser of torch takes the step.
import torch
import torch.distributed as dist
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.W1, self.b1, self.W2, self.b2 = map(torch.nn.Parameter, parameters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.relu(F.linear(x, self.W1, self.b1)), self.W2, self.b2)


def solution(X_local: torch.Tensor, y_local: torch.Tensor, *args: torch.Tensor | float) -> tuple[torch.Tensor, ...]:
    *state, lr, beta1, beta2, eps, step = args
    state = [tensor.clone() for tensor in state]
    for work in [dist.broadcast(tensor, src=0, async_op=True) for tensor in state]:
        work.wait()
    net, reductions = Net(*state[:4]), []

    def reduce(parameter: torch.nn.Parameter) -> None:
        parameter.grad /= dist.get_world_size()
        reductions.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)
    F.mse_loss(net(X_local), y_local).backward()
    for work in reductions:
        work.wait()
    adam = torch.optim.Adam(net.parameters(), lr=lr, betas=(beta1, beta2), eps=eps)
    for parameter, exp_avg, exp_avg_sq in zip(net.parameters(), state[4:8], state[8:], strict=True):
        adam.state[parameter] = {"step": torch.tensor(step - 1.0), "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    adam.step()
    return (*net.parameters(), *state[4:])
