# expect: runtime_error was killed by SIGSEGV; stood at candidate.py:9 (solution)
# Reads address 8.
import ctypes

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    ctypes.string_at(8)
    return tensor
