"""The process groups of a rank, each made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from pkb_gym.engine.wire.orders import Partition


class ProcessGroups:
    """Groups by the partition of the ranks that they are parts of.

    Args:
        rank: This one.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._groups: dict[Partition, ProcessGroup] = {}

    def of(self, partition: Partition) -> ProcessGroup | None:
        """The group of this rank, None where no part has it; all ranks call it alike, as each makes every group."""
        import torch.distributed as dist

        if partition not in self._groups:
            for ranks in partition:
                group = dist.new_group(list(ranks))
                if self._rank in ranks:
                    self._groups[partition] = group
        return self._groups.get(partition)
