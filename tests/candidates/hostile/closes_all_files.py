# expect: runtime_error before its work was done
# Closes every file descriptor, the connection to the evaluator among them.
import os

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    os.closerange(0, 1024)
    return tensor
