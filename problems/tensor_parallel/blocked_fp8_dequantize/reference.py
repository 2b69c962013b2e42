import torch
import torch.distributed as dist


def solution(local_y: torch.Tensor, local_s: torch.Tensor, block_size: int = 128) -> torch.Tensor:
    """Scales W chunks of block-quantised values back to float32 and sends chunk j to rank j.

    Blocks are runs of `block_size` elements of the flattened chunks; they may cross rows, not chunks.

    Args:
        local_y: (W, M, N), quantised values, slice j for rank j; float8_e4m3fn or another float dtype, contiguous.
        local_s: (W, M*N / block_size), one scale per block, float32 or bfloat16, contiguous.
        block_size: elements per scale, a power of two that divides M*N.

    Returns:
        (W, M, N) float32; slice j is the chunk that rank j had for this rank.
    """
    assert local_y[0].numel() % block_size == 0, "block_size must divide the size of a chunk"
    blocks = local_y.reshape(local_s.numel(), block_size)
    x = (blocks.float() * local_s.float().reshape(-1, 1)).view(local_y.shape)
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out
