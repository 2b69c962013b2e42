"""The two heaps of a reference rank: its own, which the candidate never maps, and the candidate's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.rankside.devices import AnyHeap, Device

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.cuda_memory import Segment


class RankHeaps:
    """The heaps of one reference rank, which lie in shared memory or on its GPU.

    Args:
        device: Device of the rank.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._own: AnyHeap | None = None
        self._candidate: AnyHeap | None = None
        self._segments: list[Segment] = []

    @property
    def own(self) -> AnyHeap:
        """The reference heap, of inputs as they were made and of the baseline's deliveries."""
        assert self._own is not None, "no heaps are mapped"
        return self._own

    @property
    def candidate(self) -> AnyHeap:
        """The heap that the candidate's rank maps too."""
        assert self._candidate is not None, "no heaps are mapped"
        return self._candidate

    def allocate(self, segment_bytes: int) -> list[int]:
        """Allocates a segment of each heap on this rank's GPU.

        Args:
            segment_bytes: Size of a segment in bytes.

        Returns:
            The descriptors of the segments, of the own heap first.
        """
        import torch

        from pkb_gym.engine.rankside.cuda_memory import Segment

        self._segments = [Segment(segment_bytes, torch.cuda.current_device()) for _ in range(2)]
        return [segment.fd for segment in self._segments]

    def map(self, fds: list[int], segment_bytes: int) -> None:
        """Maps both heaps.

        Args:
            fds: Descriptors of the own heap, then as many of the candidate's.
            segment_bytes: Size of one rank's segment in bytes.
        """
        half = len(fds) // 2
        self._own = self._device.heap(fds[:half], segment_bytes)
        self._candidate = self._device.heap(fds[half:], segment_bytes)
        if self._segments:
            self._own.zero()
            self._zero_candidate()

    def clear_candidate(self, control_fd: int) -> None:
        """Leaves nothing of an earlier candidate in the candidate's heap.

        Args:
            control_fd: Descriptor of its fresh control file.
        """
        self.candidate.replace_control(control_fd)
        self._zero_candidate()

    def _zero_candidate(self) -> None:
        self.candidate.zero()
        self._device.synchronize()

    def release(self) -> None:
        """Lets go of the heaps on the CPU, where each evaluation brings its own."""
        if self._device.name == "cpu":
            self._own = self._candidate = None

    def close(self) -> None:
        """Frees heaps and segments on a GPU."""
        for heap in (self._own, self._candidate):
            if heap is not None:
                heap.close()
        for segment in self._segments:
            segment.close()
        self._own = self._candidate = None
        self._segments = []
