# expect: compile_error at most 32 can be
# Adds 100,000 extensions to those that its import has built, by cpp_extension: each is a descriptor in the evaluator.
import gc

import torch
import torch.distributed as dist

for each in gc.get_objects():
    if type(each).__name__ == "Recorder":
        each.libraries.update({f"x:{number:016x}": "/dev/null" for number in range(100_000)})


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = tensor.clone()
    dist.all_reduce(out)
    return out
