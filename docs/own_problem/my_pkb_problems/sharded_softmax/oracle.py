"""The same in float64, from the columns of all ranks at once."""

import torch


def oracle(ranks: list[tuple[torch.Tensor]]) -> list[torch.Tensor]:
    """The results of `solution` on each rank.

    Args:
        ranks: Arguments of `solution` on each rank; a process group is the list of its ranks.
    """
    whole = torch.cat([x for (x,) in ranks], dim=1)
    shards = whole.double().softmax(dim=1).chunk(len(ranks), dim=1)
    return [shard.to(whole.dtype) for shard in shards]
