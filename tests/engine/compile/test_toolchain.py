"""A library is read, never loaded; however much stands in it, in a moment."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import compile_cpp
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.gangs.emulated_gang import with_emulated_names

EXPORT = 'extern "C" int __tvm_ffi_solution() { return 0; }\n'
LOOP = ".altmacro\\n{macro}\\n.endm\\n.set i,0\\n.rept {count}\\none %i\\n.set i,i+1\\n.endr\\n.text"
NAME = "s" * 5000
MANY = {
    "symbols": LOOP.format(macro=".macro one n\\n.globl sym\\\\n\\nsym\\\\n: .byte 0", count=60_000),
    "names": f".macro one\\n.globl {NAME}\\\\@\\n{NAME}\\\\@: .byte 0\\n.endm\\n.rept 2000\\none\\n.endr\\n.text",
    "sections": LOOP.format(macro='.macro one n\\n.section sec\\\\n,\\"a\\"\\n.byte 0', count=20_000),
}


def library(text: str, folder: Path) -> bytes:
    artifact = compile_cpp(text + "// solution\n", CompileCache(folder), 60)
    assert artifact.binary is not None, artifact.log
    return artifact.binary


def test_the_export_is_found(tmp_path: Path) -> None:
    assert exports_solution(library(EXPORT, tmp_path))
    assert not exports_solution(library("int other() { return 0; }\n", tmp_path))


@pytest.mark.parametrize("assembly", MANY.values(), ids=list(MANY))
def test_a_library_of_too_many_parts_is_not_gone_through(assembly: str, tmp_path: Path) -> None:
    """The assembler makes millions of them of a line, and each took the reader some tens of microseconds."""
    binary = library(f'{EXPORT}asm("{assembly}");\n', tmp_path)
    began = time.monotonic()
    assert not exports_solution(binary)
    assert time.monotonic() - began < 2


def test_names_that_share_their_ends_are_not_read_one_by_one(tmp_path: Path) -> None:
    """60 names of up to 1.2 MB, which lie in a table of 1.2 MB: read one by one, larger ones held a service up.

    Names of symbols do so, and names of sections, which reading by a section's name goes through.
    """
    macro = (
        '.macro one a, n\\n.section \\\\a,\\"a\\"\\n.globl \\\\a\\\\()q\\n\\\\a\\\\()q: .byte 0\\n'
        f".if \\\\n\\none {NAME * 4}\\\\a, (\\\\n-1)\\n.endif\\n.endm"
    )
    binary = library(f'{EXPORT}asm("{macro}\\n.data\\none y, 60\\n.text");\n', tmp_path)
    assert len(binary) > 3_000_000
    tracemalloc.start()
    assert exports_solution(binary)
    assert with_emulated_names(binary) == binary
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000


def test_warnings_that_a_source_asks_for_spare_headers_of_the_dialect(tmp_path: Path) -> None:
    """`-Wall` as a diagnostic brings warnings about older standards with it, which templates of the FFI set off."""
    strict = '#pragma GCC diagnostic error "-Wall"\n#pragma GCC diagnostic error "-Wextra"\n#include "pkb/symm.h"\n'
    artifact = compile_cpp(f"{strict}void solution(pkb::Comm) {{}}\n", CompileCache(tmp_path), 60)
    assert artifact.ok, artifact.log
