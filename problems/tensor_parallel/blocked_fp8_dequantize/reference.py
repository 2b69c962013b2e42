import torch
import torch.distributed as dist

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of torch for the CPU come without it
    triton = None


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
    x = dequantise(local_y, local_s, block_size)
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def dequantise(y: torch.Tensor, s: torch.Tensor, block_size: int) -> torch.Tensor:
    """Values times scales in float32: in one kernel on GPUs that have 8-bit floats (compute capability 8.9)."""
    if triton is not None and y.is_cuda and torch.cuda.get_device_capability(y.device) >= (8, 9):
        x = torch.empty_like(y, dtype=torch.float32)
        rows = max(1, 2048 // block_size)
        if x.numel() > 0:
            dequantise_blocks[(triton.cdiv(s.numel(), rows),)](y, s, x, s.numel(), rows, block_size)
        return x
    return (y.reshape(s.numel(), block_size).float() * s.float().reshape(-1, 1)).view(y.shape)


if triton is not None:

    @triton.jit
    def dequantise_blocks(y_ptr, s_ptr, x_ptr, blocks, rows: tl.constexpr, block_size: tl.constexpr):
        """Each program takes `rows` blocks."""
        block = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
        element = block[:, None] * block_size + tl.arange(0, block_size)
        y = tl.load(y_ptr + element, mask=block[:, None] < blocks).to(tl.float32)
        s = tl.load(s_ptr + block, mask=block < blocks).to(tl.float32)
        tl.store(x_ptr + element, y * s[:, None], mask=block[:, None] < blocks)
