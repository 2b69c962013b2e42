# expect: output_mismatch differ
# Returns an empty tensor and fills it in a thread.
import threading
import time

import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(tensor)

    def work() -> None:
        time.sleep(0.03)
        total = tensor.clone()
        dist.all_reduce(total)
        out.copy_(total)

    threading.Thread(target=work, daemon=True).start()
    return out
