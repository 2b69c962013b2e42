# expect: passed
# problem: AllGather
# until: time
# A Triton kernel that reads its peers' symmetric buffers by their addresses.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

_buffers = {}


@triton.jit
def gather_kernel(buffers, out, numel, BLOCK: tl.constexpr):
    peer = tl.program_id(1)
    addresses = buffers.to(tl.pointer_type(tl.uint64))
    theirs = tl.load(addresses + peer).to(tl.pointer_type(tl.int16))
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < numel
    tl.store(out + peer * numel + place, tl.load(theirs + place, mask=mask), mask=mask)


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _buffers:
        buffer = symm_mem.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        _buffers[key] = buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
    buffer, handle = _buffers[key]
    buffer.copy_(tensor)
    handle.barrier(channel=0)
    out = tensor.new_empty(handle.world_size, *tensor.shape)
    words = tensor.numel() * tensor.element_size() // 2
    grid = (triton.cdiv(words, 1024), handle.world_size)
    gather_kernel[grid](handle.buffer_ptrs_dev, out.view(torch.int16), words, BLOCK=1024)
    handle.barrier(channel=1)
    return out
