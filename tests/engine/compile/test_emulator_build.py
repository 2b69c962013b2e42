"""How the emulator is compiled in the sandbox, once for all evaluators; its absence."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pkb_gym.engine.compile import emulator
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.support.exclusive import LOCKS
from rank_emulator import building


def test_evaluators_side_by_side_compile_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a minute of all processors for the same result."""
    cache = CompileCache(tmp_path)

    def is_locked(_cache: CompileCache, key: str, _compile_now: object) -> Artifact:
        assert key == "key" and not began.is_set()
        other.start()
        assert not began.wait(0.1)
        return Artifact(ok=True, log="", duration_s=1.0, binary=b"emulator")

    def begin() -> None:
        with CompileCache(tmp_path).exclusive("key"):
            began.set()

    began, other = threading.Event(), threading.Thread(target=begin)
    monkeypatch.setattr(emulator, "build_key", lambda: "key")
    monkeypatch.setattr(emulator, "cached_compile", is_locked)
    assert emulator.build_emulator(cache) == b"emulator"
    assert began.wait(60)
    other.join()
    with cache.exclusive("key"), cache.exclusive("another key"):
        pass


def test_locks_leave_one_file(tmp_path: Path) -> None:
    """Each key's lock was a file of its own, kept for ever."""
    cache = CompileCache(tmp_path)
    for key in ("one", "two", "three"):
        with cache.exclusive(key):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCKS]


def test_nobody_waits_where_the_cache_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = CompileCache(tmp_path / "file")
    with cache.exclusive("key"), cache.exclusive("key"):
        pass


@pytest.mark.skipif(not nvcc_available(), reason="compiled with headers of the CUDA toolkit")
def test_the_sandbox_compiles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of its sources, in place of all; tests of evaluations take what `rank_emulator.build` has compiled."""
    kept = ("exports.map", "matrix_tiles.cpp", "matrix_tiles.h", "small_floats.h")
    few = {name: building.contents()[name] for name in kept}
    few |= {building.STANDARD_HEADERS: building.standard_headers(few.values())}
    few |= {"driver.cpp": b'extern "C" int cudaFree() { return 0; }\nint hidden() { return 1; }\n'}
    monkeypatch.setattr(building, "contents", lambda: few)
    for kept_for_the_process in ("_sources_digest", "_command_for"):
        monkeypatch.setattr(emulator, kept_for_the_process, getattr(emulator, kept_for_the_process).__wrapped__)
    cache = CompileCache(tmp_path)
    assert not emulator.is_built(cache)
    binary = emulator.build_emulator(cache)
    assert binary.startswith(b"\x7fELF") and b"CUDAFree" in binary and emulator.is_built(cache)
    few["driver.cpp"] = b"nonsense"
    with pytest.raises(emulator.InfrastructureError, match=r"does not compile here: [^$]*driver.cpp"):
        emulator.build_emulator(cache)


WITHOUT_IT = """
import sys
sys.modules["rank_emulator"] = None
from pkb_gym.cli import main
from pkb_gym.cli.doctor_emulator import examine_emulator
found = examine_emulator()
print(found.state, found.remedy)
kernel = sys.argv[1]
print(main(["eval", "AllReduce", kernel, "--device", "emulated"]))
print(main(["show", "AllReduce"]))
"""


def test_all_else_works_without_it(tmp_path: Path) -> None:
    """Where its package is missing, device "emulated" says what to install."""
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\n')
    done = subprocess.run([sys.executable, "-c", WITHOUT_IT, kernel], capture_output=True, text=True, check=True)
    printed = done.stdout + done.stderr
    if nvcc_available():
        remedy = "the package rank_emulator is missing; install pkb-gym again"
        assert f"limited {remedy}" in printed
        assert f"device 'emulated' is not available here: {remedy}" in " ".join(printed.split())
    assert "\n2\n" in done.stdout and done.stdout.rstrip().endswith("\n0"), printed
