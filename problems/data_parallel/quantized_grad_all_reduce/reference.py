import torch
import torch.distributed as dist
import torch.nn.functional as F


@torch.no_grad()
def solution(flat_grad: torch.Tensor, block_size: int) -> torch.Tensor:
    """Averages the ranks' gradients, each first rounded to 8-bit whole numbers with one scale per block.

    A block's scale is its largest magnitude (at least 1e-8) / 127; its codes are x / scale, rounded to nearest-even.
    What is averaged is code * scale, in float32.

    Args:
        flat_grad: (N,), this rank's gradient.
        block_size: elements that share a scale; the last block may be shorter.

    Returns:
        (N,), dtype of flat_grad, the same on every rank.
    """
    assert block_size >= 1, "block_size must be at least 1"
    num_elements = flat_grad.numel()
    if num_elements == 0:
        return flat_grad

    # Quantise.
    blocks = F.pad(flat_grad.reshape(-1), (0, -num_elements % block_size)).view(-1, block_size)
    scales = blocks.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-8) / 127
    codes = (blocks.float() / scales).round().clamp(-127, 127).to(torch.int8)

    # Dequantise and average.
    recovered = (codes.float() * scales).view(-1)[:num_elements]
    dist.all_reduce(recovered, op=dist.ReduceOp.SUM)
    return (recovered / dist.get_world_size()).to(flat_grad.dtype).view(flat_grad.shape)
