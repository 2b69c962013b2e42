"""The NVIDIA GPUs of this machine, as the driver's management library tells without making a context on any."""

from __future__ import annotations

from functools import cache

import pynvml

from pkb_gym.engine import environment


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
