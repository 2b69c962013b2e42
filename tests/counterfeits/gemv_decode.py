"""Counterfeits of GemvDecode: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def blocks_one_after_another(hidden_states, weight_shard, bias_shard):
    local = hidden_states @ weight_shard.T + bias_shard
    blocks = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, local)
    return torch.cat(blocks).view(hidden_states.shape[0], -1)


COUNTERFEITS = (
    Counterfeit(0, "blocks one after another", blocks_one_after_another, "with a single token no interleave is needed"),
)
