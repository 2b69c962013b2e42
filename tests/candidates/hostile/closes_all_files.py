# expect: runtime_error rank 0
# Closes every file descriptor, the connection to the evaluator among them.
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    os.closerange(0, 1024)
    return tensor
