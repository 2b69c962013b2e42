# expect: runtime_error TypeError; positional argument
# It takes an argument too many.
import torch


def solution(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return tensor
