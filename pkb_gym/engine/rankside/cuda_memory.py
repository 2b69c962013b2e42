"""Device memory that other processes can map: the virtual memory functions of the CUDA driver.

Segments are allocated by one process each, travel as file descriptors, and are mapped side by side by whoever has the
descriptors (CUDA C++ Programming Guide, "Virtual Memory Management"). torch's symmetric memory is made of the same
parts, but knows one process group alone, while here a trusted gang and a candidate's gang share a heap.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


class CudaMemoryError(Exception):
    """Raised when a call of the driver failed."""


class Segment:
    """Memory on one device that this process allocated.

    Attributes:
        fd: Names it for other processes; `close` closes it.
        nbytes: Size of the memory, in bytes.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        from cuda.bindings import driver

        self.nbytes = nbytes
        self._handle = _checked("cuMemCreate", driver.cuMemCreate(nbytes, _properties(device), 0))
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        exported = driver.cuMemExportToShareableHandle(self._handle, kind, 0)
        try:
            self.fd = int(_checked("cuMemExportToShareableHandle", exported))
        except CudaMemoryError:
            driver.cuMemRelease(self._handle)
            raise

    def close(self) -> None:
        """Lets go of it; the memory is freed when nobody maps it any more."""
        from cuda.bindings import driver

        os.close(self.fd)
        _checked("cuMemRelease", driver.cuMemRelease(self._handle))


class Mapping:
    """Segments of several devices, mapped one behind the other.

    Attributes:
        base: Address of the first.
    """

    def __init__(self, fds: Sequence[int], segment_bytes: int, device: int) -> None:
        from cuda.bindings import driver

        self._total = segment_bytes * len(fds)
        self._segment_bytes = segment_bytes
        self._mapped = 0
        address = _checked("cuMemAddressReserve", driver.cuMemAddressReserve(self._total, 0, 0, 0))
        self.base = int(address)
        try:
            for fd in fds:
                self._map_next(fd)
            access = driver.CUmemAccessDesc()
            access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = device
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            _checked("cuMemSetAccess", driver.cuMemSetAccess(address, self._total, [access], 1))
        except CudaMemoryError:
            self.close()
            raise

    def _map_next(self, fd: int) -> None:
        from cuda.bindings import driver

        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        handle = _checked("cuMemImportFromShareableHandle", driver.cuMemImportFromShareableHandle(fd, kind))
        where = driver.CUdeviceptr(self.base + self._mapped * self._segment_bytes)
        try:
            _checked("cuMemMap", driver.cuMemMap(where, self._segment_bytes, 0, handle, 0))
            self._mapped += 1
        finally:
            released = driver.cuMemRelease(handle)  # the mapping keeps it
        _checked("cuMemRelease", released)

    def close(self) -> None:
        """Unmaps it all; the device must be idle."""
        from cuda.bindings import driver

        for rank in range(self._mapped):
            where = driver.CUdeviceptr(self.base + rank * self._segment_bytes)
            _checked("cuMemUnmap", driver.cuMemUnmap(where, self._segment_bytes))
        _checked("cuMemAddressFree", driver.cuMemAddressFree(driver.CUdeviceptr(self.base), self._total))


def _properties(device: int) -> Any:
    from cuda.bindings import driver

    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def _checked(what: str, answer: tuple[Any, ...]) -> Any:
    """The value that a call of the driver returned beside its status."""
    status = answer[0]
    if int(status) != 0:
        raise CudaMemoryError(f"{what}: {status.name}")
    return answer[1] if len(answer) > 1 else None
