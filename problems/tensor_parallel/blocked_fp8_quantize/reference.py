import torch
import torch.distributed as dist

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of torch for the CPU come without it
    triton = None

E4M3_MAX = 448.0


def solution(local_tensor: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises this rank's rows to 8-bit floats, one scale per block of a row, and gathers codes and scales.

    A block's scale is its largest magnitude / 448; its codes are x / scale, rounded to nearest-even. A block of zeros
    has the scale 0 and the codes 0.

    Args:
        local_tensor: (M, N), rows r*M .. (r+1)*M-1 of the gathered tensor; any float dtype, contiguous.
        block_size: elements per scale, a power of two that divides N.

    Returns:
        y_global: (W*M, N) float8_e4m3fn, the codes of all ranks.
        s_global: (W*M, N / block_size) float32, their scales.
    """
    assert local_tensor.shape[-1] % block_size == 0, "block_size must divide the last dimension"
    y, s = quantise(local_tensor, block_size)
    if not dist.is_initialized():
        return y, s

    world_size = dist.get_world_size()
    y_global = y.new_empty(world_size * y.shape[0], *y.shape[1:])
    s_global = s.new_empty(world_size * s.shape[0], *s.shape[1:])
    dist.all_gather_into_tensor(y_global.view(torch.uint8), y.view(torch.uint8))  # collectives know no 8-bit floats
    dist.all_gather_into_tensor(s_global, s)
    return y_global, s_global


def quantise(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of this rank: in one kernel on GPUs that have 8-bit floats (compute capability 8.9)."""
    if triton is not None and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9):
        y = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        s = x.new_empty(*x.shape[:-1], x.shape[-1] // block_size, dtype=torch.float32)
        rows = max(1, 2048 // block_size)
        quantise_blocks[(triton.cdiv(s.numel(), rows),)](x, y, s, s.numel(), rows, block_size)
        return y, s
    blocks = x.float().unflatten(-1, (-1, block_size))
    s = blocks.abs().amax(dim=-1) / E4M3_MAX
    t = torch.where(s == 0, 1.0, s)
    return (blocks / t.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn), s


if triton is not None:

    @triton.jit
    def quantise_blocks(x_ptr, y_ptr, s_ptr, blocks, rows: tl.constexpr, block_size: tl.constexpr):
        """Each program takes `rows` blocks; divisions are rounded to nearest, as PyTorch's are."""
        block = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
        element = block[:, None] * block_size + tl.arange(0, block_size)
        x = tl.load(x_ptr + element, mask=block[:, None] < blocks, other=0.0).to(tl.float32)
        s = tl.div_rn(tl.max(tl.abs(x), axis=1), 448.0)
        t = tl.where(s == 0, 1.0, s)
        tl.store(s_ptr + block, s, mask=block < blocks)
        tl.store(y_ptr + element, tl.div_rn(x, t[:, None]).to(tl.float8e4nv), mask=block[:, None] < blocks)
