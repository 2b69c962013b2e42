# expect: passed
# world_size: 2
# Builds a C++ extension when it is imported; ranks get what was built.
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor add(torch::Tensor a, torch::Tensor b) { return a + b; }
"""
extension = load_inline(name="adder", cpp_sources=SOURCE, functions=["add"], extra_cflags=["-O0"])


def solution(tensor: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    out = parts[0].float()
    for part in parts[1:]:
        out = extension.add(out, part.float())
    return out.to(tensor.dtype)
