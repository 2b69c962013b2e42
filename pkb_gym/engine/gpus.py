"""The NVIDIA GPUs of this machine, as the driver's management library tells without making a context on any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import pynvml

from pkb_gym.engine import environment

NVLINK_LINKS = 18
"""At most, of one GPU; those that a GPU lacks are passed over."""


@dataclass(frozen=True)
class LinkBytes:
    """What crossed one GPU's NVLinks: data alone, without the protocol's share.

    Attributes:
        sent_bytes: that left it.
        received_bytes: that came to it.
    """

    sent_bytes: int
    received_bytes: int

    def __sub__(self, earlier: Self) -> LinkBytes:
        """What crossed between two readings."""
        return LinkBytes(
            max(0, self.sent_bytes - earlier.sent_bytes), max(0, self.received_bytes - earlier.received_bytes)
        )

    def per_call(self, calls: int) -> LinkBytes:
        """The share of one of so many calls."""
        return LinkBytes(self.sent_bytes // calls, self.received_bytes // calls)


def link_bytes(count: int) -> tuple[LinkBytes | None, ...]:
    """Counters of the first GPUs' links since some moment in the past; None where a GPU has none."""
    pynvml.nvmlInit()
    try:
        return tuple(_link_bytes(handle) for handle in _handles()[:count])
    finally:
        pynvml.nvmlShutdown()


def between(before: Sequence[LinkBytes | None], after: Sequence[LinkBytes | None]) -> list[LinkBytes | None]:
    """What crossed each GPU's links between two readings."""
    return [
        None if earlier is None or later is None else later - earlier
        for earlier, later in zip(before, after, strict=True)
    ]


def _link_bytes(handle: object) -> LinkBytes | None:
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
    return LinkBytes(sent_bytes=kib[sent] << 10, received_bytes=kib[received] << 10)


def _field(value: Any) -> int:  # noqa: ANN401 - a structure of pynvml, which is untyped
    """A counter, as the driver says that it is stored."""
    kinds = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    return int(getattr(value.value, kinds.get(value.valueType, "ullVal")))


@cache
def names() -> tuple[str, ...]:
    """Names of the GPUs that this process may use, such as "NVIDIA H200"; none without a driver.

    CUDA_VISIBLE_DEVICES limits them: indices, or nothing.
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
    """Of the first GPU, such as (9, 0); None where there is none."""
    if not names():
        return None
    pynvml.nvmlInit()
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(_handles()[0])
    finally:
        pynvml.nvmlShutdown()
    return int(major), int(minor)


def _handles() -> list[object]:
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in _visible(pynvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _visible(count: int) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves; as in CUDA, the first that does not exist ends the list."""
    listed = environment.visible_devices()
    if listed is None:
        return list(range(count))
    kept: list[int] = []
    for entry in listed.split(","):
        if not entry.strip().isdigit() or int(entry) >= count:
            break
        kept.append(int(entry))
    return kept
