# expect: output_mismatch differ
# Says that it delivered, and did not.
import sys

import torch

for name, module in list(sys.modules.items()):
    if name.endswith("rankside.results"):
        module.Delivery.deliver = lambda self, result: ([], [sys.modules[self.__module__].Claim((32, 48), "bfloat16")])


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
