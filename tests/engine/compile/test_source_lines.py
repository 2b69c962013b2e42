"""Lines of a candidate by places in its library, and what the debug information for them costs."""

from __future__ import annotations

import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from pkb_gym.engine.compile import source_lines as module
from pkb_gym.engine.compile.gxx import FLAGS
from pkb_gym.engine.compile.source_lines import SourceLine, source_lines
from pkb_gym.engine.compile.toolchain import DEBUG_INFORMATION

SOURCE = """
#include "include/pkb/half.h"
#include "other.h"
extern "C" int first(int x) { return twice(x) / (x - 1); }
extern "C" int second(int x) { return foreign(x); }
"""
HEADERS = {
    "include/pkb/half.h": "__attribute__((noinline)) static int twice(int x) { return 2 * x; }\n",
    "other.h": "__attribute__((noinline)) static int foreign(int x) { return x ^ 5; }\n",
}


def build(folder: Path, *flags: str) -> bytes:
    (folder / "include/pkb").mkdir(parents=True, exist_ok=True)
    for name, text in {"kernel.cpp": SOURCE, **HEADERS}.items():
        (folder / name).write_text(text)
    subprocess.run(["g++", *flags, f"-I{folder}", "kernel.cpp", "-o", "kernel.so"], cwd=folder, check=True)
    return (folder / "kernel.so").read_bytes()


def section(binary: bytes, name: str) -> bytes:
    return ELFFile(BytesIO(binary)).get_section_by_name(name).data()


def place(binary: bytes, function: str) -> int:
    symbols = ELFFile(BytesIO(binary)).get_section_by_name(".symtab").iter_symbols()
    return next(symbol["st_value"] for symbol in symbols if function in symbol.name)


FLAGS_ALONE = [flag for flag in FLAGS if flag != "-H" and not flag.startswith("-Wa")]


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build(tmp_path_factory.mktemp("lines"), *FLAGS_ALONE)


def test_lines_of_the_candidate_and_of_headers_of_the_dialect(binary: bytes):
    (lines,) = source_lines(binary, [[place(binary, "twice"), place(binary, "first")]])
    assert lines == [SourceLine("pkb/half.h", 1, "twice"), SourceLine("kernel.cpp", 4, "first")]
    assert [line.is_candidates for line in lines] == [False, True]


def test_other_files_and_places_outside_have_no_lines(binary: bytes):
    assert source_lines(binary, [[place(binary, "foreign"), 1 << 40]]) == [[]]


def test_each_stack_has_its_own_lines(binary: bytes):
    stacks = source_lines(binary, [[place(binary, "first")], [], [place(binary, "twice")], [place(binary, "first")]])
    assert [[line.function for line in lines] for lines in stacks] == [["first"], [], ["twice"], ["first"]]


def test_a_library_that_is_none_has_no_lines(monkeypatch: pytest.MonkeyPatch):
    assert source_lines(b"no ELF file", [[1]]) == [[]]
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    assert source_lines(b"", [[1], [2]]) == [[], []]


def test_lines_cost_nothing_at_run_time(binary: bytes, tmp_path: Path):
    """The machine code is the same, byte for byte, with debug information and without."""
    assert set(DEBUG_INFORMATION) < set(FLAGS_ALONE)
    plain = build(tmp_path, *(flag for flag in FLAGS_ALONE if flag not in DEBUG_INFORMATION))
    assert section(plain, ".text") == section(binary, ".text")
    assert ELFFile(BytesIO(plain)).get_section_by_name(".debug_line") is None


def test_a_name_that_ends_in_a_number_of_any_length_is_no_line(tmp_path: Path) -> None:
    """`#line 1 "kernel.cpp:999...\\n"`: a crash there was a ValueError of the evaluator."""
    source = f'#line 7 "kernel.cpp:{"9" * 6000}\\nx"\nextern "C" int first(int x) {{ return 3 / x; }}\n'
    (tmp_path / "kernel.cpp").write_text(source)
    subprocess.run(["g++", *FLAGS, "kernel.cpp", "-o", "kernel.so"], cwd=tmp_path, check=True, capture_output=True)
    binary = (tmp_path / "kernel.so").read_bytes()
    file = ELFFile(BytesIO(binary))
    (symbol,) = file.get_section_by_name(".dynsym").get_symbol_by_name("first")
    assert source_lines(binary, [[symbol["st_value"]]]) == [[]]
