import torch
import torch.distributed as dist


@torch.no_grad()
def solution(x: torch.Tensor) -> torch.Tensor:
    """The softmax of each row of a matrix whose columns are spread over the ranks.

    Args:
        x: (M, N / W), this rank's columns.

    Returns:
        (M, N / W), these columns of the softmax, in the dtype of x.
    """
    wide = x.float()
    largest = wide.amax(dim=1, keepdim=True)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    powers = torch.exp(wide - largest)
    sums = powers.sum(dim=1, keepdim=True)
    dist.all_reduce(sums)
    return (powers / sums).to(x.dtype)
