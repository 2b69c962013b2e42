"""A gang without a sandbox leaves nothing in the machine's /dev/shm."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

import pytest

from pkb_gym.engine.rankside import leader, namespaces
from pkb_gym.engine.wire.forking import GangRequest, RankEnded, RanksStarted
from pkb_gym.engine.wire.frames import Wire, pair
from tests.leaks import SHM

NAME = f"pkb-test-{secrets.token_hex(4)}"
FILES = MAPPED, OPEN, IN_A_FOLDER = [SHM / f"{NAME}-{what}" for what in ("mapped", "opened", "folder/file")]
held: list[object] = []


def make(path: Path) -> int:
    path.parent.mkdir(exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT)


def main(wire: Wire, rank: int, world_size: int) -> None:
    """A rank: the first makes files by name, and the other waits to be let go."""
    if rank == 0:
        for path in (MAPPED, IN_A_FOLDER):
            fd = make(path)
            os.ftruncate(fd, 4096)
            held.append(mmap.mmap(fd, 4096))
            os.close(fd)
        held.append(make(OPEN))
        wire.sock.sendall(b"made")
        if wire.sock.recv(4) == b"fail":
            raise RuntimeError("as told")
    wire.sock.recv(1)


@pytest.mark.parametrize("own_shared_memory", [True, False])
@pytest.mark.parametrize("end", ["let go", "raises"])
def test_files_that_ranks_have_made_by_name_go_with_them(own_shared_memory: bool, end: str) -> None:
    if own_shared_memory and not namespaces.may_have_own_shared_memory():
        pytest.skip("needs mount namespaces")
    request = GangRequest(
        entry=main.__module__, world_size=2, isolate=False, confined=True, allow_processes=False, limits={},
        pins_memory=False,
        scratch="/tmp", temporary_bytes=1 << 20, max_threads=1,
    )  # fmt: skip
    pairs = [pair() for _ in range(3)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for mine, _ in pairs:
                mine.close()
            theirs = [end.fileno() for _, end in pairs]
            leader.lead(
                request, [theirs[0], nowhere, os.dup(nowhere), *theirs[1:]], own_shared_memory=own_shared_memory
            )
            status = 0
        finally:
            os._exit(status)
    os.close(nowhere)
    for _, end_of_child in pairs:
        end_of_child.close()
    control, first, second = (mine for mine, _ in pairs)
    for fd in control.receive_with_fds(RanksStarted)[2]:
        os.close(fd)
    assert first.sock.recv(4) == b"made"
    assert [path for path in FILES if path.exists()] == ([] if own_shared_memory else FILES)
    of_others = SHM / f"{NAME}-of-others"  # of a program that neither maps it nor has it open
    of_others.touch()
    if end == "raises":
        first.sock.sendall(b"fail")
        assert control.receive(RankEnded)[0] == RankEnded(0, 70)
    for wire in (control, first, second):
        wire.close()
    assert os.waitpid(pid, 0)[1] == 0
    try:
        assert list(SHM.glob(f"{NAME}*")) == [of_others]
    finally:
        of_others.unlink()
