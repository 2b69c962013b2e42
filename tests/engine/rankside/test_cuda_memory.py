"""Device memory that is shared and mapped: which calls of the driver are made, and what is left after one fails.

The driver is a stand-in that keeps account of what it was asked for.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pkb_gym.engine.rankside.cuda_memory import CudaMemoryError, Mapping, Segment

SEGMENT_BYTES = 2 << 20
BASE = 0x7000_0000_0000


class Status(int):
    name = "CUDA_SUCCESS"


class Failed(Status):
    name = "CUDA_ERROR_OUT_OF_MEMORY"


class Driver(ModuleType):
    """Handles are numbers; `fail` names a call and which of them fails."""

    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR="fd")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED="recommended")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="read and write")
    CUdeviceptr = int

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.fail: tuple[str, int] = ("", 0)
        self.calls: list[str] = []
        self.handles: Counter[int] = Counter()
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, tuple[int, int]] = {}
        self.created: list[tuple[int, Any]] = []
        self.access: tuple[int, int, Any] | None = None

    @staticmethod
    def CUmemAllocationProp() -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    CUmemAccessDesc = CUmemAllocationProp

    def _answer(self, name: str, done: Callable[[], object]) -> tuple[Any, ...]:
        self.calls.append(name)
        if (name, self.calls.count(name)) == self.fail:
            return (Failed(2), None)
        value = done()
        return (Status(0),) if value is None else (Status(0), value)

    def cuMemCreate(self, nbytes: int, properties: Any, flags: int) -> tuple[Any, ...]:
        def create() -> int:
            self.created.append((nbytes, properties))
            self.handles[100] += 1
            return 100

        return self._answer("cuMemCreate", create)

    def cuMemExportToShareableHandle(self, handle: int, kind: str, flags: int) -> tuple[Any, ...]:
        assert kind == "fd" and self.handles[handle]
        return self._answer("cuMemExportToShareableHandle", lambda: os.memfd_create("segment"))

    def cuMemImportFromShareableHandle(self, fd: int, kind: str) -> tuple[Any, ...]:
        def take() -> int:
            self.handles[fd] += 1
            return fd

        assert kind == "fd"
        return self._answer("cuMemImportFromShareableHandle", take)

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        def release() -> None:
            assert self.handles[handle] > 0, "released what it does not hold"
            self.handles[handle] -= 1

        return self._answer("cuMemRelease", release)

    def cuMemAddressReserve(self, nbytes: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        def reserve() -> int:
            self.reserved[BASE] = nbytes
            return BASE

        return self._answer("cuMemAddressReserve", reserve)

    def cuMemAddressFree(self, address: int, nbytes: int) -> tuple[Any, ...]:
        def free() -> None:
            assert not self.mapped, "freed under a mapping"
            assert self.reserved.pop(address) == nbytes

        return self._answer("cuMemAddressFree", free)

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        def map_it() -> None:
            assert self.handles[handle] > 0 and address not in self.mapped
            self.mapped[address] = (nbytes, handle)

        return self._answer("cuMemMap", map_it)

    def cuMemUnmap(self, address: int, nbytes: int) -> tuple[Any, ...]:
        def unmap() -> None:
            assert self.mapped.pop(address)[0] == nbytes

        return self._answer("cuMemUnmap", unmap)

    def cuMemSetAccess(self, address: int, nbytes: int, access: list[Any], count: int) -> tuple[Any, ...]:
        def allow() -> None:
            assert count == len(access) == 1
            self.access = (address, nbytes, access[0])

        return self._answer("cuMemSetAccess", allow)

    def cuMemGetAllocationGranularity(self, properties: Any, kind: str) -> tuple[Any, ...]:
        assert kind == "recommended"
        return self._answer("cuMemGetAllocationGranularity", lambda: SEGMENT_BYTES)

    def assert_holds_nothing(self) -> None:
        assert (+self.handles, self.reserved, self.mapped) == (Counter(), {}, {})


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver, bindings = Driver(), ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    return driver


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_segment_is_allocated_on_its_device_and_shared_as_a_descriptor(driver: Driver) -> None:
    before = open_fds()
    segment = Segment(SEGMENT_BYTES, device=3)
    ((nbytes, properties),) = driver.created
    assert (nbytes, segment.nbytes) == (SEGMENT_BYTES, SEGMENT_BYTES)
    assert (properties.type, properties.requestedHandleTypes) == ("pinned", "fd")
    assert (properties.location.type, properties.location.id) == ("device", 3)
    os.fstat(segment.fd)
    segment.close()
    assert driver.calls == ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease"]
    driver.assert_holds_nothing()
    assert open_fds() == before


def test_a_segment_that_cannot_be_shared_is_freed(driver: Driver) -> None:
    driver.fail = ("cuMemExportToShareableHandle", 1)
    with pytest.raises(CudaMemoryError, match=r"^cuMemExportToShareableHandle: CUDA_ERROR_OUT_OF_MEMORY$"):
        Segment(SEGMENT_BYTES, 0)
    driver.assert_holds_nothing()


def test_the_error_names_the_call_and_the_status(driver: Driver) -> None:
    driver.fail = ("cuMemCreate", 1)
    with pytest.raises(CudaMemoryError, match=r"^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY$"):
        Segment(SEGMENT_BYTES, 0)
    assert driver.calls == ["cuMemCreate"]


def test_segments_are_mapped_side_by_side(driver: Driver) -> None:
    mapping = Mapping([11, 12, 13], SEGMENT_BYTES, device=1)
    assert mapping.base == BASE and driver.reserved == {BASE: 3 * SEGMENT_BYTES}
    assert driver.mapped == {BASE + i * SEGMENT_BYTES: (SEGMENT_BYTES, 11 + i) for i in range(3)}
    assert not +driver.handles, "the mapping alone keeps the memory"
    assert driver.access is not None
    address, nbytes, access = driver.access
    assert (address, nbytes) == (BASE, 3 * SEGMENT_BYTES)
    assert (access.location.type, access.location.id, access.flags) == ("device", 1, "read and write")
    mapping.close()
    driver.assert_holds_nothing()


@pytest.mark.parametrize(
    "fail",
    [
        ("cuMemAddressReserve", 1),
        ("cuMemImportFromShareableHandle", 1),
        ("cuMemImportFromShareableHandle", 3),
        ("cuMemMap", 1),
        ("cuMemMap", 2),
        ("cuMemSetAccess", 1),
    ],
    ids=str,
)
def test_a_mapping_that_fails_leaves_nothing(driver: Driver, fail: tuple[str, int]) -> None:
    driver.fail = fail
    with pytest.raises(CudaMemoryError, match=f"^{fail[0]}: CUDA_ERROR_OUT_OF_MEMORY$"):
        Mapping([11, 12, 13], SEGMENT_BYTES, 0)
    driver.assert_holds_nothing()


def test_an_unmapping_that_fails_is_reported(driver: Driver) -> None:
    mapping = Mapping([11], SEGMENT_BYTES, 0)
    driver.fail = ("cuMemUnmap", 1)
    with pytest.raises(CudaMemoryError, match="cuMemUnmap"):
        mapping.close()
