"""Mutants of CUDA kernels whose synchronisation is too weak, as texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.engine.mutants.weakened_operations import inline_headers, weakened

SOURCE = """// st.release.sys of a comment is none
#include "pkb/words.h"
#include "pkb/words.h"
__global__ void kernel(pkb::Device comm) {
  __threadfence_system();
  __syncthreads();
  comm.barrier_blocks(1);
}
"""
HEADER = """#pragma once
#include <cstdint>
inline void store(uint64_t* word) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(1ull) : "memory");  // st.release.sys
}
"""


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "words.h").write_text(HEADER)
    monkeypatch.setattr(
        "tests.engine.mutants.weakened_operations.inline_headers", lambda text: inline_headers(text, tmp_path)
    )
    return tmp_path


def test_headers_are_inlined_once_and_lines_know_where_they_come_from(headers: Path) -> None:
    text, origins = inline_headers(SOURCE, headers)
    assert text.count("inline void store") == 1
    lines = text.splitlines()
    assert len(lines) == len(origins)
    assert origins[lines.index("inline void store(uint64_t* word) {")] == ("words.h", 3)
    assert origins[lines.index("  __syncthreads();")] == ("expert", 6)


@pytest.mark.usefixtures("headers")
def test_each_operation_gives_its_mutants() -> None:
    found = list(weakened(SOURCE))
    assert Counter(each.kind for each in found) == {"release": 1, "scope": 2, "fence": 1, "barrier": 1, "phase": 1}
    release = next(each for each in found if each.kind == "release")
    assert release.name == "words.h:4: st.release -> st.relaxed"
    assert release.source.splitlines()[release.line - 1].lstrip().startswith('asm volatile("st.relaxed.sys.global')
    assert release.source.count("st.release.sys") == 2, "comments stay"
    (phase,) = (each for each in found if each.kind == "phase")
    assert "comm.barrier_blocks(0);" in phase.source


@pytest.mark.usefixtures("headers")
def test_what_traps_is_the_kernel_with_a_trap_at_the_operation() -> None:
    trapping = {each.name: each.trapping for each in weakened(SOURCE)}
    assert '"trap; st.release.sys.global.u64' in trapping["words.h:4: st.release -> st.relaxed"]
    assert '"trap; st.release.sys.global.u64' in trapping["words.h:4: sys -> gpu"], (
        "not in the middle of an instruction"
    )
    barrier = trapping["expert:6: __syncthreads() -> ((void)0)"]
    assert "  ::pkb_trap::hit();\n" in barrier
    assert "__syncthreads" not in barrier
    assert "comm.barrier_blocks((::pkb_trap::hit(), 1));" in trapping["expert:7: 1 -> 0"]
