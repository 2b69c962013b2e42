# expect: race|integrity|output_mismatch rank
# until: time
# Climbs the frames to the rank program, and computes all calls of the block in the first one.
import sys

import torch
import torch.distributed as dist

results: dict[int, torch.Tensor] = {}


def block_of_the_caller() -> list[torch.Tensor]:
    frame = sys._getframe(1)
    while frame is not None:
        program = frame.f_locals.get("self")
        if hasattr(program, "_arguments"):
            return [arguments[0] for arguments in program._arguments]
        frame = frame.f_back
    raise LookupError("no rank program")


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.data_ptr() not in results:
        results.clear()
        block = block_of_the_caller()
        sums = torch.stack(block)
        dist.all_reduce(sums)
        results.update({own.data_ptr(): total for own, total in zip(block, sums, strict=True)})
    return results.pop(tensor.data_ptr())
