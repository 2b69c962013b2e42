"""A zygote that is no longer wanted before it is ready."""

from __future__ import annotations

import mmap
import socket
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.gangs.sandbox import bubblewrap_arguments, bubblewrap_works, zygote_policy
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.rankside.confine import MADV_COLLAPSE
from pkb_gym.engine.wire.forking import GangRequest


@pytest.mark.parametrize("trusted", [True, False])
def test_it_ends_while_it_loads_torch(trusted: bool) -> None:
    """It listened to nobody until torch was loaded, and outlived a killed evaluator by seconds."""
    zygote = Zygote(trusted=trusted)
    try:
        zygote._control.sock.shutdown(socket.SHUT_WR)
        zygote._control.sock.settimeout(60)
        assert zygote._control.sock.recv(1) == b"", "it became ready all the same"
    finally:
        zygote.close()


def test_one_that_was_closed_while_it_started_raises_an_error() -> None:
    """Its output was read although it was closed: a ValueError in whatever thread waited for it."""
    zygote = Zygote(trusted=True)
    zygote.close()
    with pytest.raises(InfrastructureError, match="did not start"):
        zygote.wait_until_ready()


def huge_kib(pid: int) -> int:
    """KiB of a process in huge pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not tell")


def test_what_it_has_imported_lies_in_huge_pages(gang_pool: GangPool) -> None:
    """A fork copied an entry for each small page, for each rank and for their leader."""
    with mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * (8 << 20))
        try:
            memory.madvise(MADV_COLLAPSE)
        except OSError as error:
            pytest.skip(f"this kernel joins no pages: {error}")
    zygote = gang_pool.zygote(trusted=True)
    assert huge_kib(zygote._process.pid) > 0


SILENT = """
import socket, sys, time
from pkb_gym.engine.wire.forking import GangRequest, ZygoteReady
from pkb_gym.engine.wire.frames import Wire

control = Wire(socket.socket(fileno=int(sys.argv[1])))
control.send(ZygoteReady())
while True:
    control.receive_with_fds(GangRequest)
"""


def test_modules_of_the_folder_it_is_started_in_are_not_imported(tmp_path: Path, monkeypatch) -> None:
    """A checkout of another version there was imported in the place of this one."""
    (tmp_path / "pkb_gym").mkdir()
    (tmp_path / "pkb_gym" / "__init__.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    Zygote(trusted=True).close()
    assert not (tmp_path / "imported").exists()


IMPORTING = """
import socket, sys
import installed_there
try:
    import lies_there
except ImportError:
    socket.socket(fileno=int(sys.argv[1])).sendall(installed_there.TEXT)
"""


@pytest.mark.parametrize("sandboxed", [True, False])
def test_packages_that_only_pythonpath_leads_to(tmp_path: Path, monkeypatch, sandboxed: bool) -> None:
    """torch was not found in them, and no zygote for candidates started."""
    if sandboxed and not bubblewrap_works():
        pytest.skip("needs bubblewrap")
    packages, sources = tmp_path / "packages", tmp_path / "sources"
    (packages / "some-1.0.dist-info").mkdir(parents=True)
    sources.mkdir()
    (packages / "installed_there.py").write_text("TEXT = b'found'")
    (sources / "lies_there.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{sources}:{packages}")

    def command(_zygote: Zygote, fd: int) -> list[str]:
        python = [sys.executable, "-c", IMPORTING, str(fd)]
        return bubblewrap_arguments(zygote_policy(1 << 20), python) if sandboxed else python

    monkeypatch.setattr(Zygote, "_command", command)
    zygote = Zygote(trusted=False)
    try:
        zygote._control.sock.settimeout(60)
        assert zygote._control.sock.recv(5) == b"found"
    finally:
        zygote.close()


REQUEST = GangRequest(
    entry="none", world_size=1, isolate=False, confined=False, allow_processes=False, limits={}, scratch="/tmp",
    pins_memory=False,
    temporary_bytes=0, max_threads=1,
)  # fmt: skip


def test_one_that_does_not_answer_in_time_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a reply came too late, and was taken for that of the next request: so went every evaluation."""
    monkeypatch.setattr(Zygote, "_command", lambda _, fd: [sys.executable, "-c", SILENT, str(fd)])
    zygote = Zygote(trusted=True)
    try:
        zygote.wait_until_ready()
        zygote._control.sock.settimeout(0.1)
        with pytest.raises(InfrastructureError, match="the zygote is gone"):
            zygote.fork(REQUEST, [])
        assert not zygote.alive, "the pool starts another in its place"
        with pytest.raises(InfrastructureError, match="the zygote is gone"):
            zygote.fork(REQUEST, [])
    finally:
        zygote.close()
