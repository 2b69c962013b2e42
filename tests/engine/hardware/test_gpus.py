"""Which GPUs this process may use, and their links, from a management library that stands in for the driver's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pynvml
import pytest

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.gpus import GpuConnections, NvlinkBytes, between

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-1a2b3c4d-0000-4106-c12f-20bd9faed9f6",
    "GPU-8932aaaa-1111-4106-c12f-20bd9faed9f6",
    "GPU-5e5e5e5e-2222-4106-c12f-20bd9faed9f6",
)
SLICE = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"


class Library:
    """Four GPUs with their index in their name and compute capability, and a slice of one."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self.has_driver = True
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"GPU {index}", index=index, uuid=UUIDS[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:
        if uuid != SLICE:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return SimpleNamespace(name="a slice", index=7, uuid=SLICE)

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> bytes | str:
        return handle.name.encode() if handle.index % 2 else handle.name  # versions differ

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle: SimpleNamespace) -> list[int]:
        return [9, handle.index]

    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(gpu=25 * handle.index, memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(total=(80 + handle.index) << 30, free=1 << 30)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setattr(gpus, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    forget()
    yield library
    forget()
    assert library.open == 0, "what is opened is closed"


def forget() -> None:
    for cached in (gpus.names, gpus.driver_version, gpus.compute_capability, gpus.memory_bytes):
        cached.cache_clear()


def test_without_a_driver_there_is_none(library: Library) -> None:
    library.has_driver = False
    assert gpus.names() == ()
    assert gpus.compute_capability() is None
    assert gpus.driver_version() is None


def test_all_are_there_where_nothing_limits_them(library: Library) -> None:
    assert gpus.names() == ("GPU 0", "GPU 1", "GPU 2", "GPU 3")
    assert gpus.compute_capability() == (9, 0)
    assert gpus.driver_version() == "580.1"


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        ("2", [2]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("3,1", [3, 1]),
        (" 1 , 0 ", [1, 0]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("1,4,2", [1]),
        ("1,,2", [1]),
        ("2,all", [2]),
        ("0,²", [0]),
        ("0,1,0", []),
        (UUIDS[2], [2]),
        (f"{UUIDS[3]},{UUIDS[0]}", [3, 0]),
        ("GPU-1a2b", [1]),
        ("GPU-8932f,GPU-8932a", [0, 2]),
        ("GPU-1a2b,GPU-8932", [1]),
        ("GPU-1a2b,GPU-ffff,GPU-5e5e", [1]),
        ("GPU-1a2b,GPU-1a2b3c4d", []),
        ("gpu-1a2b", []),
    ],
)
def test_cuda_visible_devices_limits_and_orders_them(
    library: Library, monkeypatch: pytest.MonkeyPatch, listed: str, visible: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpus.names() == tuple(f"GPU {index}" for index in visible)
    assert gpus.compute_capability() == ((9, visible[0]) if visible else None)


def test_a_slice_is_a_gpu_of_its_own(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SLICE)
    assert gpus.names() == ("a slice",)
    forget()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{UUIDS[0][4:]},{SLICE}")
    assert gpus.names() == (), "the first is none"


def test_the_driver_is_asked_once(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gpus.names()
    library.has_driver = False
    assert gpus.names() == first


def test_memory_is_that_of_the_smallest_visible_gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpus.memory_bytes() == 81 << 30 and gpus.free_bytes() == 1 << 30
    gpus.memory_bytes.cache_clear()
    library.has_driver = False
    assert gpus.memory_bytes() is None and gpus.free_bytes() is None


def test_utilisations_are_those_of_the_visible_gpus(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert gpus.utilisations() == (0.75, 0.25)
    assert library.open == 0


class LinkedLibrary(SimpleNamespace):
    """GPUs with six links each, of which some are up; some pairs are joined."""

    NVMLError = pynvml.NVMLError
    NVML_FEATURE_ENABLED, NVML_P2P_STATUS_OK, NVML_P2P_CAPS_INDEX_NVLINK = 1, 0, 2

    def __init__(self, up: list[int], joined: set[tuple[int, int]]) -> None:
        super().__init__(up=up, joined=joined, begun=0)

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlShutdown(self) -> None:
        self.begun -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.up)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"GPU {handle}"

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 6:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(link < self.up[handle])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        if self.up[one] == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 0 if (one, other) in self.joined else 3


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LinkedLibrary], GpuConnections | None]]:
    """`ask(fake)` -> what the fake library's GPUs are connected by."""

    def connections(fake: LinkedLibrary) -> GpuConnections | None:
        monkeypatch.setattr(gpus, "pynvml", fake)
        for requested in (gpus.names, gpus.connections):
            requested.cache_clear()
        found = gpus.connections()
        assert fake.begun == 0, "the library was left open"
        return found

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield connections
    for requested in (gpus.names, gpus.connections):
        requested.cache_clear()


def test_links_that_are_up_are_counted(ask) -> None:
    assert ask(LinkedLibrary([6, 4], {(0, 1)})) == GpuConnections(nvlinks=(6, 4), apart=())


def test_pairs_without_nvlink_are_named(ask) -> None:
    assert ask(LinkedLibrary([6, 6, 0], {(0, 1)})) == GpuConnections(nvlinks=(6, 6, 0), apart=((0, 2), (1, 2)))


def test_hidden_gpus_do_not_count(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert ask(LinkedLibrary([1, 2, 3], {(2, 0)})) == GpuConnections(nvlinks=(3, 1), apart=())


def test_without_gpus_there_is_nothing_to_connect(ask) -> None:
    assert ask(LinkedLibrary([], set())) is None


def test_link_counters_count_between_two_readings() -> None:
    before, after = (
        [NvlinkBytes(100, 50), None, NvlinkBytes(9, 9)],
        [NvlinkBytes(400, 80), NvlinkBytes(1, 1), NvlinkBytes(3, 9)],
    )
    assert between(before, after) == [NvlinkBytes(300, 30), None, NvlinkBytes(0, 0)]
    assert NvlinkBytes(300, 30).per_call(17) == NvlinkBytes(17, 1)
