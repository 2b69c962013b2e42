# expect: passed
# problem: GemmAllReduce
# until: time
# Published style: a module with buffers of its own that ranks share, two halves in turn, by files in /dev/shm.
from __future__ import annotations

import math

import torch
import torch.distributed as dist


class SymmetricBuffer:
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        world_size = dist.get_world_size()
        name = f"/dev/shm/buffer_{'x'.join(map(str, shape))}"
        elements = 2 * world_size * math.prod(shape)
        if dist.get_rank() == 0:
            torch.from_file(name, shared=True, size=elements, dtype=dtype)
        dist.barrier()
        self.halves = torch.from_file(name, shared=True, size=elements, dtype=dtype).view(2, world_size, *shape)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.buffers_by_shape: dict[tuple[int, ...], SymmetricBuffer] = {}
        self.calls = 0

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shape = (a.shape[0], b.shape[1])
        if shape not in self.buffers_by_shape:
            self.buffers_by_shape[shape] = SymmetricBuffer(shape, torch.float32)
        half = self.buffers_by_shape[shape].halves[self.calls % 2]
        self.calls += 1
        torch.matmul(a.float(), b.float(), out=half[dist.get_rank()])
        dist.barrier()
        return half.sum(0).to(a.dtype)


model = Model().eval()


def solution(A_local: torch.Tensor, B_local: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(A_local, B_local)
