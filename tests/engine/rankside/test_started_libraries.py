"""How NVSHMEM and NCCL are started on the ranks of a gang; stand-ins take the place of kernels' libraries."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pkb_gym.engine.rankside.failures import CandidateError
from pkb_gym.engine.rankside.started_libraries import NO_MULTICAST, SETTINGS, start, start_emulated

ID = bytes(range(128))


class Library:
    """A kernel's library that is linked with NVSHMEM.

    Args:
        status: Result of starting it.
    """

    def __init__(self, status: int = 0) -> None:
        self.begun: list[tuple[bytes, int, int]] = []
        self._status = status

    def pkb_nvshmem_id(self, made: Any) -> int:
        made.raw = ID
        return 0

    def pkb_nvshmem_begin(self, identity: bytes, rank: int, world_size: int) -> int:
        self.begun.append((identity, rank, world_size))
        return self._status


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder, and an environment to change."""
    monkeypatch.chdir(tmp_path)
    for name in (*SETTINGS, *NO_MULTICAST, "TORCH_SYMM_MEM_DISABLE_MULTICAST"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


def load(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)


def test_all_ranks_begin_with_the_id_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    load(library, monkeypatch)
    later = threading.Thread(target=start, args=("kernel-1.so", 1, 2), daemon=True)
    later.start()
    start("kernel-0.so", 0, 2)
    later.join(30)
    assert sorted(library.begun, key=lambda each: each[1]) == [(ID, 0, 2), (ID, 1, 2)]


def test_the_machine_has_the_last_word_on_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "eth0")
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "0")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    load(Library(), monkeypatch)
    start("kernel-0.so", 0, 1)
    assert os.environ["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] == "eth0"
    assert {**SETTINGS, "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "eth0"}.items() <= os.environ.items()
    assert NO_MULTICAST.items() <= os.environ.items(), "but not on multicast, where it is off"


def test_a_kernel_without_either_starts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load(object(), monkeypatch)
    start("kernel-0.so", 0, 2)
    assert not list(tmp_path.iterdir()) and not SETTINGS.keys() & os.environ.keys()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (7, r"NVSHMEM could not be started: begin returned 7; NVSHMEM_DEBUG"),
        (-22809, r"this process has NCCL 2\.28\.9"),
    ],
)
def test_what_does_not_start_is_a_load_error(monkeypatch: pytest.MonkeyPatch, status: int, message: str) -> None:
    load(Library(status), monkeypatch)
    with pytest.raises(CandidateError, match=message) as caught:
        start_emulated("kernel-0.so", 0, 2)
    assert caught.value.kind == "load_error"
