"""The library that has gloo's device thread wait for a locked connection instead of spinning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.own_library import build_for_host
from pkb_gym.engine.evaluators.gang_pool import PRELOADED as FILES
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.heaps import memory_file
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.wire.forking import PRELOADED
from pkb_gym.problems.catalogue import find_problem
from tests.waiting import PATIENCE_S

EVENTS = 500
WAITS = r"""
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Prints how often this thread went to sleep while it waited for so many events, each of which it handles, or none.
int main(int argc, char** argv) {
  const bool handles = std::strcmp(argv[1], "handles") == 0;
  const int source = eventfd(1, EFD_NONBLOCK), loop = epoll_create1(0);
  epoll_event wanted{EPOLLIN, {}}, found;
  wanted.data.fd = source;
  epoll_ctl(loop, EPOLL_CTL_ADD, source, &wanted);
  for (int event = 0; event < std::atoi(argv[2]); ++event) {
    uint64_t value = 1;
    if (epoll_wait(loop, &found, 1, -1) != 1 || found.data.fd != source) return 1;
    // As many calls as take longer than the library waits on any machine.
    for (int call = 0; handles && call < 20; ++call) {
      if (read(source, &value, sizeof value) < 0 || write(source, &value, sizeof value) < 0) return 2;
    }
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%ld\n", usage.ru_nvcsw);
}
"""


@pytest.fixture(scope="module")
def library(compiled_before: Path) -> bytes:
    return build_for_host(FILES, CompileCache.in_folder(compiled_before))


@pytest.mark.parametrize(("what", "naps"), [("handles", False), ("leaves", True)])
def test_an_event_that_nobody_handled_is_waited_for(tmp_path: Path, library: bytes, what: str, naps: bool) -> None:
    """It was reported again at once, thousands of times in a row."""
    (tmp_path / "waits.cpp").write_text(WAITS)
    (tmp_path / "library.so").write_bytes(library)
    subprocess.run(["g++", "-O2", "waits.cpp", "-o", "waits"], cwd=tmp_path, check=True)
    slept = {}
    for preloaded in ("", str(tmp_path / "library.so")):
        command = [tmp_path / "waits", what, str(EVENTS)]
        run = subprocess.run(
            command,
            env={**os.environ, "LD_PRELOAD": preloaded},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        slept[bool(preloaded)] = int(run.stdout)
    assert slept[False] < EVENTS / 10
    assert slept[True] > EVENTS / 3 if naps else slept[True] < EVENTS / 3, slept


SHOWS = """
import os


def solution(tensor):
    maps = open("/proc/self/maps").read()
    raise RuntimeError(f"preloaded: {'pkb-preloaded' in maps}, named: {os.environ.get('LD_PRELOAD')}")
"""


def test_ranks_have_it_and_programs_that_they_start_do_not(local_evaluator: LocalEvaluator) -> None:
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), SHOWS, config)
    assert feedback.failure is Failure.RUNTIME_ERROR
    assert "preloaded: True, named: None" in feedback.message
    zygote = local_evaluator._pool.zygote(trusted=True)
    assert "pkb-preloaded" in Path(f"/proc/{zygote._process.pid}/maps").read_text()


LOADS = """
import ctypes, os, sys

preloaded, other = int(sys.argv[1]), int(sys.argv[2])
os.dup2(other, preloaded)
print(ctypes.CDLL(f"/proc/self/fd/{preloaded}").of_the_other())
"""


def test_another_library_may_be_loaded_by_the_number_of_its_descriptor(tmp_path: Path, library: bytes) -> None:
    """The dynamic linker took it for the preloaded one, by its name, and no symbol of it was found."""
    (tmp_path / "other.cpp").write_text('extern "C" int of_the_other() { return 17; }')
    subprocess.run(["g++", "-shared", "-fPIC", "other.cpp", "-o", "other.so"], cwd=tmp_path, check=True)
    other = os.open(tmp_path / "other.so", os.O_RDONLY)
    fd = memory_file("preloaded", library)
    try:
        run = subprocess.run(
            [sys.executable, "-c", LOADS, str(fd), str(other)],
            env={**os.environ, "LD_PRELOAD": f"{PRELOADED}{fd}"},
            pass_fds=(fd, other),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(fd)
        os.close(other)
    assert run.stdout.strip() == "17", run.stderr


def test_what_the_user_preloads_is_preloaded_too(
    tmp_path: Path, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_the_user.so").write_bytes(library)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "of_the_user.so"))
    with LocalEvaluator(key=b"tests") as evaluator:
        zygote = evaluator._pool.zygote(trusted=True)
        maps = Path(f"/proc/{zygote._process.pid}/maps").read_text()
    assert "pkb-preloaded" in maps and "of_the_user.so" in maps
