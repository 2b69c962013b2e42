# expect: runtime_error rank
# Closes every file descriptor on every rank, the connection to the evaluator among them; either may be reported first.
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    os.closerange(0, 1024)
    return tensor
