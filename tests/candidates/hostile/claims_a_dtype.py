# expect: wrong_shape_or_dtype expected (32, 48) bfloat16
# Says that its output has a dtype whose name is no valid Unicode.
import sys

import torch

for name, module in list(sys.modules.items()):
    if name.endswith("rankside.results"):
        module.Delivery.deliver = lambda self, result: (
            [],
            [sys.modules[self.__module__].Claim((32, 48), "\ud800" * 1000)],
        )


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
