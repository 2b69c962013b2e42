"""Agreement of the ranks of a training run by way of their hosts, without any work on their GPUs.

A rank that waits in a collective of NCCL keeps its GPU busy, and would disturb kernels that are timed on it meanwhile.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

Item = TypeVar("Item")


class HostGroup:
    """All ranks of a run; without `torch.distributed`, this process alone.

    Every method is a collective: all ranks call it, in the same order.

    Args:
        timeout_s: Maximum wait for another rank in seconds, after which all fail.
    """

    def __init__(self, timeout_s: float = 3600.0) -> None:
        self._is_distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)) if self._is_distributed else None
        )

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        return dist.get_rank() if self._is_distributed else 0

    def gather(self, item: Item) -> list[Item]:
        """Every rank's item, in order of ranks."""
        if not self._is_distributed:
            return [item]
        items: list[Item | None] = [None] * dist.get_world_size()
        dist.all_gather_object(items, item, group=self._group)
        return items  # type: ignore[return-value]  # each was filled in

    def any(self, flag: bool) -> bool:
        """Whether it holds on any rank."""
        return any(self.gather(flag))

    def from_first(self, item: Item) -> Item:
        """Rank 0's item."""
        return self.gather(item)[0]

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self._is_distributed:
            dist.barrier(group=self._group)
