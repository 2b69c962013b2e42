# expect: wrong_shape_or_dtype expected (32, 48)
# Says of more outputs than there are what none of them can be.
import sys

import torch


def claims(self, result):
    claim = sys.modules[self.__module__].Claim
    return [], [claim((-1, 1 << 60), ""), None, claim((), "nonsense"), *[None] * 1000]


for name, module in list(sys.modules.items()):
    if name.endswith("rankside.results"):
        module.Delivery.deliver = claims


def solution(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
