# expect: out_of_memory memory
# memory_mib: 512
# Takes memory until there is none.
import torch


def solution(tensor):
    kept = []
    while True:
        kept.append(torch.ones(8 << 20))
