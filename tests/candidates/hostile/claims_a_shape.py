# expect: wrong_shape_or_dtype expected (32, 48)
# Says that its output is larger than the machine's memory.
import sys

import torch

for name, module in list(sys.modules.items()):
    if name.endswith("rankside.results"):
        module.Delivery.deliver = lambda self, result: (
            [],
            [sys.modules[self.__module__].Claim((1 << 39, 1 << 39), "bfloat16")],
        )


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
