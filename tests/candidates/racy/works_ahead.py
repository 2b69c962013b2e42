# expect: race|integrity|output_mismatch
# until: time
# Finds the arguments of the whole block in the rank program, and computes all calls in the first one.
import gc

import torch
import torch.distributed as dist

results: dict[int, torch.Tensor] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.data_ptr() not in results:
        results.clear()
        gc.unfreeze()  # what lasts is shown again
        for program in gc.get_objects():
            if type(program).__name__ == "Python" and hasattr(program, "_arguments"):
                block = [arguments[0] for arguments in program._arguments]
        sums = torch.stack(block)
        dist.all_reduce(sums)
        results.update({own.data_ptr(): total for own, total in zip(block, sums, strict=True)})
    return results.pop(tensor.data_ptr())
