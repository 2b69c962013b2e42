"""The NVIDIA GPUs of this machine, as the driver's management library lists them, without a context on any."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import pynvml

from pkb_gym.engine.support import env_vars

NVLINK_LINKS = 18
"""The most links of one GPU; those that a GPU lacks are passed over."""


@dataclass(frozen=True)
class NvlinkBytes:
    """Traffic of one GPU's NVLinks: data alone, without the protocol's share.

    Attributes:
        sent_bytes: Bytes that left the GPU.
        received_bytes: Bytes that reached the GPU.
    """

    sent_bytes: int
    received_bytes: int

    def __sub__(self, earlier: Self) -> NvlinkBytes:
        """The traffic between two readings."""
        return NvlinkBytes(
            max(0, self.sent_bytes - earlier.sent_bytes), max(0, self.received_bytes - earlier.received_bytes)
        )

    def per_call(self, calls: int) -> NvlinkBytes:
        """The share of one of so many calls."""
        return NvlinkBytes(self.sent_bytes // calls, self.received_bytes // calls)


@dataclass(frozen=True)
class GpuConnections:
    """The connections between the GPUs of this machine.

    Attributes:
        nvlinks: Number of active NVLinks of each GPU.
        apart: Pairs of GPUs, the lower index first, that no NVLink joins, directly or through a switch.
    """

    nvlinks: tuple[int, ...]
    apart: tuple[tuple[int, int], ...]


def link_bytes(count: int) -> tuple[NvlinkBytes | None, ...]:
    """Counters of the first GPUs' links since some moment in the past; None where a GPU has none."""
    pynvml.nvmlInit()
    try:
        return tuple(_link_bytes(handle) for handle in _handles()[:count])
    finally:
        pynvml.nvmlShutdown()


def between(before: Sequence[NvlinkBytes | None], after: Sequence[NvlinkBytes | None]) -> list[NvlinkBytes | None]:
    """Traffic of each GPU's links between two readings."""
    return [
        None if earlier is None or later is None else later - earlier
        for earlier, later in zip(before, after, strict=True)
    ]


def _link_bytes(handle: object) -> NvlinkBytes | None:
    sent, received = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    fields = [(field, link) for field in (sent, received) for link in range(NVLINK_LINKS)]
    try:
        values = list(pynvml.nvmlDeviceGetFieldValues(handle, fields))
    except pynvml.NVMLError:
        return None
    counted = [value for value in values if value.nvmlReturn == pynvml.NVML_SUCCESS]
    if not counted:
        return None
    kib = {field: sum(_field(value) for value in counted if value.fieldId == field) for field in (sent, received)}
    return NvlinkBytes(sent_bytes=kib[sent] << 10, received_bytes=kib[received] << 10)


def _field(value: Any) -> int:  # noqa: ANN401 - a structure of pynvml, which is untyped
    """A counter, in the type that the driver reports."""
    kinds = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    return int(getattr(value.value, kinds.get(value.valueType, "ullVal")))


@cache
def names() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, such as "NVIDIA H200"; none without a driver.

    CUDA_VISIBLE_DEVICES limits and orders them.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in _handles())
    finally:
        pynvml.nvmlShutdown()


@cache
def memory_bytes() -> int | None:
    """The least memory of the GPUs of `names`; None where the driver does not report it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in _handles()), default=None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def free_bytes() -> int | None:
    """The least memory of the GPUs of `names` that no process holds; None where the driver does not report it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in _handles()), default=None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def utilisations() -> tuple[float, ...]:
    """Share of the last moments (up to a second) in which each GPU of `names` ran a kernel, in [0, 1]."""
    pynvml.nvmlInit()
    try:
        return tuple(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in _handles())
    finally:
        pynvml.nvmlShutdown()


@cache
def driver_version() -> str | None:
    """Version of the NVIDIA driver; None without one."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


@cache
def compute_capability() -> tuple[int, int] | None:
    """The compute capability of the first GPU, such as (9, 0); None where there is none."""
    if not names():
        return None
    pynvml.nvmlInit()
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(_handles()[0])
    finally:
        pynvml.nvmlShutdown()
    return int(major), int(minor)


@cache
def connections() -> GpuConnections | None:
    """The connections between the GPUs of `names`; None where there are none."""
    if not names():
        return None
    pynvml.nvmlInit()
    try:
        handles = _handles()
        pairs = itertools.combinations(range(len(handles)), 2)
        return GpuConnections(
            nvlinks=tuple(_nvlinks_up(handle) for handle in handles),
            apart=tuple((one, other) for one, other in pairs if not _nvlink_joins(handles[one], handles[other])),
        )
    finally:
        pynvml.nvmlShutdown()


def _nvlinks_up(handle: object) -> int:
    up = 0
    for link in range(NVLINK_LINKS):
        with contextlib.suppress(pynvml.NVMLError):  # this GPU has fewer, or none
            up += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
    return up


def _nvlink_joins(one: object, other: object) -> bool:
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _handles() -> list[object]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    As in CUDA, entries are indices, beginnings of UUIDs ("GPU-...") or identifiers of slices ("MIG-..."); the first
    that names none ends the list, and one that is named twice leaves none at all.
    """
    count = pynvml.nvmlDeviceGetCount()
    listed = env_vars.visible_devices()
    if listed is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    kept: dict[int | str, object] = {}
    for entry in listed.split(","):
        key = _named(entry.strip(), count)
        if key is None:
            break
        if key in kept:
            return []
        by = pynvml.nvmlDeviceGetHandleByIndex if isinstance(key, int) else pynvml.nvmlDeviceGetHandleByUUID
        try:
            kept[key] = by(key)
        except pynvml.NVMLError:
            break
    return list(kept.values())


def _named(entry: str, count: int) -> int | str | None:
    """The GPU that an entry names: an index, or the identifier of a slice; None where it names no GPU, or several."""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        uuids = [_text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
        found = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    else:
        found = [int(entry)] if entry.isdecimal() and int(entry) < count else []
    return found[0] if len(found) == 1 else None
