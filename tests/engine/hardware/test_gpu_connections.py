"""What NVML tells of links, with a library that says what the test wants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.gpus import Connections


class NVMLError(Exception):
    """What pynvml raises."""


class FakeNVML(SimpleNamespace):
    """GPUs with six links each, of which some are up; some pairs are joined."""

    NVMLError = NVMLError
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
            raise NVMLError
        return int(link < self.up[handle])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        if self.up[one] == 0:
            raise NVMLError
        return 0 if (one, other) in self.joined else 3


@pytest.fixture
def ask(monkeypatch):
    """`ask(fake)` -> what the fake library's GPUs are connected by."""

    def connections(fake: FakeNVML) -> Connections | None:
        monkeypatch.setattr(gpus, "pynvml", fake)
        for asked in (gpus.names, gpus.connections):
            asked.cache_clear()
        found = gpus.connections()
        assert fake.begun == 0, "the library was left open"
        return found

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield connections
    for asked in (gpus.names, gpus.connections):
        asked.cache_clear()


def test_links_that_are_up_are_counted(ask):
    assert ask(FakeNVML([6, 4], {(0, 1)})) == Connections(nvlinks=(6, 4), apart=())


def test_pairs_without_nvlink_are_named(ask):
    assert ask(FakeNVML([6, 6, 0], {(0, 1)})) == Connections(nvlinks=(6, 6, 0), apart=((0, 2), (1, 2)))


def test_hidden_gpus_do_not_count(ask, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert ask(FakeNVML([1, 2, 3], {(2, 0)})) == Connections(nvlinks=(3, 1), apart=())


def test_without_gpus_there_is_nothing_to_connect(ask):
    assert ask(FakeNVML([], set())) is None
