"""Counterfeits of KJTAllToAll: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.other.kjt_all_to_all.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def no_node_blocks(lengths, values, key_splits, batch_size, pg=None, weights=None, stride_per_key=None, stagger=1):
    return reference(lengths, values, key_splits, batch_size, pg, weights, stride_per_key)


def ids_off(lengths, values, key_splits, batch_size, pg=None, weights=None, stride_per_key=None, stagger=1):
    out = reference(lengths, values, key_splits, batch_size, pg, weights, stride_per_key, stagger)
    return out | {"values": out["values"] + out["values"] // 200}


def own_batch_size(lengths, values, key_splits, batch_size, pg=None, weights=None, stride_per_key=None, stagger=1):
    out = reference(lengths, values, key_splits, batch_size, pg, weights, stride_per_key, stagger)
    if stride_per_key is None:
        n = dist.get_world_size(pg)
        out |= {"stride": torch.tensor(n * batch_size), "stride_per_rank": torch.tensor([batch_size] * n)}
    return out


COUNTERFEITS = (
    Counterfeit(0, "no node blocks", no_node_blocks, "stagger is always 1"),
    Counterfeit(0, "ids off by 1/2 %", ids_off, "ids are compared with 1 % tolerance"),
    Counterfeit(0, "its own batch size for everyone's", own_batch_size, "batches are always equal"),
)
