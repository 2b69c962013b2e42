"""Symmetric memory of Triton's GSan in the words of `torch.distributed._symmetric_memory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .devices import Device
from .failures import CandidateError

if TYPE_CHECKING:
    import torch

LACKING = frozenset({"put_signal", "wait_signal", "memset32", "stream_write_value32", "offset"})
"""Members of torch's handle that GSan's memory has no counterpart of."""


class Handle:
    """A handle as `rendezvous` gives it, made of two of GSan's: one of the buffer, one of a signal pad.

    Args:
        buffer: GSan's handle of the buffer.
        buffer_size: Size of the buffer in bytes.
        pad: Signal pad of this rank, 32-bit words.
        pads: GSan's handle of the signal pads.
    """

    multicast_ptr = 0
    """As on a machine without multicast."""

    def __init__(self, buffer: Any, buffer_size: int, pad: torch.Tensor, pads: Any) -> None:
        import torch

        self._buffer, self._pad, self._pads = buffer, pad, pads
        self.rank, self.world_size = int(buffer.rank), int(buffer.world_size)
        self.buffer_size, self.signal_pad_size = buffer_size, pad.nbytes
        self.buffer_ptrs = self._pointers(buffer)
        self.signal_pad_ptrs = self._pointers(pads)
        self._tables = [
            torch.tensor(pointers, dtype=torch.int64, device=pad.device)
            for pointers in (self.buffer_ptrs, self.signal_pad_ptrs)
        ]
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (table.data_ptr() for table in self._tables)

    def _pointers(self, handle: Any) -> list[int]:
        """The address of each rank's memory in this process."""
        import torch

        return [handle.get_buffer(rank, (1,), torch.uint8).data_ptr() for rank in range(self.world_size)]

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Has all ranks meet, on the host too, so that channels make no difference."""
        self._buffer.barrier()

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """A tensor of a rank's buffer."""
        return self._buffer.get_buffer(rank, sizes, dtype, storage_offset)  # type: ignore[no-any-return]  # GSan's

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor at the beginning of a peer's buffer."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """A tensor of a rank's signal pad, by default all of it as 32-bit words."""
        import torch

        words = sizes or (self.signal_pad_size // torch.uint32.itemsize,)
        return self._pads.get_buffer(rank, words, dtype or torch.uint32, storage_offset)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """Raises for a member that is not here.

        Raises:
            CandidateError: torch's handle has it.
            AttributeError: That has none either.
        """
        if name in LACKING:
            raise CandidateError("runtime_error", f"GSan's symmetric memory has no {name}")
        raise AttributeError(name)


class SymmetricMemory:
    """GSan's symmetric memory in the place of torch's.

    Args:
        gsan: Module `triton.experimental.gsan.symmetric_memory`.
        device: Device of this rank.
    """

    def __init__(self, gsan: Any, device: Device) -> None:
        self._gsan, self._device = gsan, device
        self._handles: dict[tuple[int, str], Handle] = {}
        self._workspaces: dict[str, torch.Tensor] = {}

    def install(self) -> None:
        """Puts it in the place of the module's functions, in this process."""
        import torch.distributed._symmetric_memory as symmetric_memory

        vars(symmetric_memory).update(
            empty=self.empty, rendezvous=self.rendezvous, get_symm_mem_workspace=self.workspace
        )

    def empty(
        self, *size: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> torch.Tensor:
        """A tensor of symmetric memory; its content is undefined."""
        tensor: torch.Tensor = self._gsan.empty(*size, dtype=dtype, device=device)
        place = tensor.data_ptr()  # handles of a tensor that lay here have gone with it
        self._handles = {key: handle for key, handle in self._handles.items() if key[0] != place}
        return tensor

    def rendezvous(self, tensor: torch.Tensor, group: Any) -> Handle:
        """The handle of a tensor, the same each time; every rank of the group calls this with a tensor of its own."""
        import torch
        import torch.distributed._symmetric_memory as symmetric_memory

        name = group if isinstance(group, str) else group.group_name
        key = tensor.untyped_storage().data_ptr(), name
        if key not in self._handles:
            buffer = self._gsan.rendezvous(tensor, group)
            words = symmetric_memory.get_signal_pad_size() // torch.int32.itemsize
            pad: torch.Tensor = self._gsan.empty(words, dtype=torch.int32, device=tensor.device).zero_()
            self._device.synchronize()  # peers may signal as soon as they have met
            pads = self._gsan.rendezvous(pad, group)
            self._handles[key] = Handle(buffer, tensor.untyped_storage().nbytes(), pad, pads)
        return self._handles[key]

    def workspace(self, group_name: str, min_size: int) -> Handle:
        """The handle of a group's workspace, of so many bytes at least."""
        import torch

        found = self._workspaces.get(group_name)
        if found is None or found.nbytes < min_size:
            device = self._device.torch_device
            self._workspaces[group_name] = self.empty(min_size, dtype=torch.uint8, device=device)
        return self.rendezvous(self._workspaces[group_name], group_name)
