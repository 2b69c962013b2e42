"""How a rank on a GPU gets ready; torch's part of it is put aside, as no GPU is needed to see its arguments."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from pkb_gym.engine.rankside import devices
from pkb_gym.engine.rankside.devices import CudaDevice, make_device
from pkb_gym.engine.stages.heap_layout import GPU_RESERVE_BYTES


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """The variables of CUDA at the moment when the context is made."""
    found: dict[str, str | None] = {}

    def set_device(index: int) -> None:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS"):
            found[name] = os.environ.get(name)
        found["index"] = str(index)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setattr(devices, "bind_rank", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    return found


def test_a_rank_of_a_group_sees_all_gpus_and_has_all_queues(seen: dict[str, str | None]) -> None:
    device = CudaDevice(2, 4, 1)
    device.prepare()
    assert seen == {"CUDA_VISIBLE_DEVICES": None, "CUDA_DEVICE_MAX_CONNECTIONS": None, "index": "2"}
    assert (device.torch_device, device.stream) == ("cuda:2", 7)


def test_float32_is_float32(seen: dict[str, str | None]) -> None:
    """Convolutions of the baseline had 11 bits, and so had to have those of a candidate."""
    CudaDevice(0, 2, 1).prepare()
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32


def test_a_rank_without_a_group_sees_its_own_gpu(seen: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    CudaDevice(2, 4, 1).prepare("native")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["index"]) == ("2", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    CudaDevice(2, 4, 1).prepare("native")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["index"]) == ("6", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    CudaDevice(2, 4, 1).prepare("native", all_gpus=True)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["index"]) == ("4,5,6,7", "2")


@pytest.mark.parametrize(
    ("ranks_per_gpu", "gpus"), [(1, "01234567"), (2, "00112233"), (4, "00001111"), (8, "00000000")]
)
def test_neighbouring_ranks_share_a_gpu(
    ranks_per_gpu: int, gpus: str, seen: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, gpu in enumerate(gpus):
        device = CudaDevice(rank, 8, 1, ranks_per_gpu)
        device.prepare()
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["index"]) == (None, gpu) and device.torch_device == f"cuda:{gpu}"
        CudaDevice(rank, 8, 1, ranks_per_gpu).prepare("native")
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["index"]) == (gpu, "0")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


def test_a_setting_reaches_the_device() -> None:
    assert make_device("cuda", 5, 8, 1, 4).torch_device == "cuda:1"
    assert make_device("cpu", 5, 8, 1).torch_device == "cpu"


def test_one_stream_needs_one_queue(seen: dict[str, str | None]) -> None:
    device = CudaDevice(0, 1, 1)
    device.prepare("native", one_queue=True)
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    seen.clear()
    device.prepare("native")
    assert not seen, "a rank is prepared once"


@pytest.mark.parametrize(("ranks_per_gpu", "kept"), [(1, devices.KEPT_BYTES), (4, devices.KEPT_BYTES // 4)])
def test_a_little_memory_is_kept_between_evaluations(
    ranks_per_gpu: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("all"))
    device = CudaDevice(0, 4, 1, ranks_per_gpu)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: kept)
    device.trim()
    assert not freed
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: kept + 1)
    device.trim()
    assert freed == ["all"]


def test_what_reference_ranks_keep_is_part_of_what_an_evaluation_needs() -> None:
    assert GPU_RESERVE_BYTES > devices.KEPT_BYTES
