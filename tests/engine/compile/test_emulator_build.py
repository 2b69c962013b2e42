"""How the emulator is compiled."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pkb_gym.engine.compile import emulator
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.support.exclusive import LOCKS


def test_standard_headers_are_read_once_for_all_sources() -> None:
    """For most sources they took longer than the code itself."""
    headers = emulator._standard_headers(
        [b"#include <vector>\n#include <cuda.h>\n", b"#include <map>\n#include <vector>\n"]
    )
    assert headers == b"#include <map>\n#include <vector>\n", "those of other libraries have a suffix"
    assert b"#include <vector>\n" in emulator._contents()[emulator.STANDARD_HEADERS]


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
    monkeypatch.setattr(emulator, "_key", lambda _contents: "key")
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
def test_they_are_precompiled_before_the_sources() -> None:
    contents = emulator._contents()
    precompile, _, sources = emulator._command(contents)[2].partition(" && ")
    assert precompile.endswith(f"-x c++-header {emulator.STANDARD_HEADERS}")
    included = sources.count(f"-include {emulator.STANDARD_HEADERS}")
    assert included == len(emulator._units(contents)) > 0


def test_every_source_is_in_one_translation_unit() -> None:
    """Sources of a unit read their headers once, which halves the compiler's work."""
    contents = emulator._contents()
    units = emulator._units(contents)
    sources = [source for unit in units.values() for source in unit]
    assert sorted(sources) == sorted(name for name in contents if name.endswith(".cpp"))
    assert len(units) < len(sources) / 2
    assert units["ptx_parser"] == ["ptx_parser.cpp"] and "ptx_body.cpp" in units["ptx"]
    for name in emulator.ALONE:
        assert f"{name}.cpp" in contents
    optimised = {source for unit, members in units.items() if unit.startswith(emulator.FAST) for source in members}
    assert optimised == {source for source in sources if source.startswith(emulator.FAST)}
    assert {"alu_half.cpp", "alu_integer.cpp", "executor_run.cpp", "matrix_tiles.cpp"} < optimised
