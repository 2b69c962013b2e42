"""Huge pages for processes that fork many others: what they hold stays as it was, and zygotes use them."""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import psutil
import pytest

from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.ranks.gang import Confinement, Gang
from pkb_gym.engine.rankside.huge_pages import HUGE_PAGE_BYTES, MADV_COLLAPSE, use_huge_pages
from pkb_gym.engine.rankside.zygote import HUGE_PAGES_FROM
from tests.engine.forked import in_child


def kernel_has_them() -> bool:
    """Whether this kernel moves memory to huge pages when asked."""
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(len(memory))
        view = ctypes.c_char.from_buffer(memory)
        begin = -(-ctypes.addressof(view) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        del view
        madvise = ctypes.CDLL(None).madvise
        return bool(madvise(ctypes.c_void_p(begin), ctypes.c_size_t(HUGE_PAGE_BYTES), MADV_COLLAPSE) == 0)


needs_them = pytest.mark.skipif(not kernel_has_them(), reason="needs MADV_COLLAPSE, of Linux 6.1")


def huge_kib(pid: int | str) -> int:
    """Memory of a process that lies on huge pages."""
    found = re.search(r"^AnonHugePages: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@needs_them
def test_what_has_been_written_is_moved_and_the_same() -> None:
    def work() -> None:
        content = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        content[:] = written = bytes(range(256)) * (len(content) // 256)
        before = huge_kib("self")
        use_huge_pages()
        assert huge_kib("self") >= before + (12 << 10)
        assert content[:] == written
        use_huge_pages()  # again: nothing changes
        assert content[:] == written

    in_child(work)


@needs_them
def test_a_zygote_uses_them_from_the_second_gang_of_a_candidate(gang_pool: GangPool) -> None:
    zygote = gang_pool.zygote(trusted=False)
    for _ in range(HUGE_PAGES_FROM):
        with Gang(zygote, ".builder", 1, Confinement(None)):
            pass
    process = psutil.Process(zygote._process.pid)  # or the sandbox, with the zygote below it
    assert max(huge_kib(each.pid) for each in (process, *process.children(recursive=True))) > 32 << 10
