"""Results where PTX leaves a choice or ptxas takes one, after differences that random programs showed on an H200."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

NUMBER = 0x4008000000000000
QUIET, NEGATIVE, SIGNALLING = 0x7FF8000000000000, 0xFFF8123456789ABC, 0x7FF0000000000001
SETTLED = 0x7FF8000000000001

TWO = "ld.global.f64 %fd1, [%rd0];\nld.global.f64 %fd2, [%rd0+8];\nld.global.f64 %fd3, [%rd0+16];\n"
EXCHANGED = "ld.global.f64 %fd2, [%rd0+8];\nld.global.f64 %fd1, [%rd0];\nld.global.f64 %fd3, [%rd0+16];\n"
SINGLE = "ld.global.f32 %f1, [%rd0];\nmov.f32 %f0, 0f3F800000;\nsetp.eq.u32 %p1, %r0, 0;\n"
HALF = "ld.global.b16 %rs1, [%rd0];\n"
WORDS = (
    "ld.global.b64 %rd3, [%rd0];\nld.global.b64 %rd4, [%rd0+8];\nld.global.u32 %r2, [%rd0+16];\n"
    "ld.global.u32 %r3, [%rd0+24];\n"
)

CASES = {
    "of two NaN the second": (TWO, "mul.rn.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), NEGATIVE),
    "made quiet": (TWO, "add.rp.f64 %fd0, %fd1, %fd2", "f64 %fd0", (NEGATIVE, SIGNALLING), SETTLED),
    "exchanged": (EXCHANGED, "mul.rn.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), QUIET),
    "difference": (TWO, "sub.rz.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), NEGATIVE),
    "exchanged difference": (EXCHANGED, "sub.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), QUIET),
    "exchanged directed difference": (EXCHANGED, "sub.rz.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), QUIET),
    "a difference of numbers": (EXCHANGED, "sub.f64 %fd0, %fd1, %fd2", "f64 %fd0", (NUMBER, 0), NUMBER),
    "a directed difference of numbers": (EXCHANGED, "sub.rm.f64 %fd0, %fd1, %fd2", "f64 %fd0", (NUMBER, 0), NUMBER),
    "a quotient: the first": (TWO, "div.rp.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, NEGATIVE), QUIET),
    "the third before the first": (
        *(TWO, "fma.rn.f64 %fd0, %fd1, %fd2, %fd3", "f64 %fd0"),
        *((QUIET, NUMBER, NEGATIVE), NEGATIVE),
    ),
    "the second before the third": (
        *(TWO, "fma.rp.f64 %fd0, %fd1, %fd2, %fd3", "f64 %fd0"),
        *((NUMBER, QUIET, NEGATIVE), QUIET),
    ),
    "greatest of two NaN": (TWO, "max.f64 %fd0, %fd1, %fd2", "f64 %fd0", (QUIET, SIGNALLING), SETTLED),
    "least of one register": (TWO, "min.f64 %fd0, %fd1, %fd1", "f64 %fd0", (SIGNALLING,), SIGNALLING),
    "greatest of one register of f32": (SINGLE, "max.f32 %f0, %f1, %f1", "f32 %f0", (0x7FC00000,), 0x7FC00000),
    "greatest of one register of f16": (HALF, "max.f16 %rs0, %rs1, %rs1", "b16 %rs0", (0xFE55,), 0xFE55),
    "a product with 1": (SINGLE, "mul.f32 %f0, %f1, 0f3F800000", "f32 %f0", (0x7F800001,), 0x7F800001),
    "1 first": (SINGLE, "mul.f32 %f0, 0f3F800000, %f1", "f32 %f0", (0x7F800001,), 0x7F800001),
    "neg with a guard": (SINGLE, "@%p1 neg.f32 %f0, %f1", "f32 %f0", (0xFFC12345,), 0x7FC12345),
    "neg without": (SINGLE, "neg.f32 %f0, %f1", "f32 %f0", (0xFFC12345,), 0x7FFFFFFF),
    "abs with a guard": (SINGLE, "@%p1 abs.f32 %f0, %f1", "f32 %f0", (0x7FC00000,), 0x7FC00000),
    "a NaN saturated": (TWO, "cvt.rn.sat.f32.f64 %f0, %fd1", "f32 %f0", (QUIET,), 0),
    "a NaN to tf32": (SINGLE, "cvt.rna.tf32.f32 %r2, %f1", "b32 %r2", (0x7FFFFFFF,), 0x7FFFE000),
    "a position beyond 64 bits": (
        *(WORDS, "bfi.b64 %rd5, %rd3, %rd4, %r2, %r3", "b64 %rd5"),
        *((0xC6619520F0994B6E, 0xFF186274BA9B7B76, 0x802, 0x802), 0xFF186274BA9B7B76),
    ),
    "a length beyond 64 bits": (
        *(WORDS, "bfi.b64 %rd5, %rd3, %rd4, %r2, %r3", "b64 %rd5"),
        *((0x075C61A5BFEBCCE6, 0xC50D736800A31909, 0x20, 0x802), 0xBFEBCCE600A31909),
    ),
    "a literal of f32": (
        *(SINGLE, "slct.ftz.f32.f32 %f0, %f1, 0fCB7A2E5F, %f1", "f32 %f0"),
        *((0xB68442B9,), 0xCB7A2E5F),
    ),
    "a sum of two NaN in memory": (
        *(TWO, "atom.global.add.f64 %fd1, [%rd0+8], %fd3;\nld.global.f64 %fd0, [%rd0+8]", "f64 %fd0"),
        *((0, SIGNALLING, SETTLED), SETTLED),
    ),
}


@pytest.fixture(scope="module")
def results(emulator: EmulatorLibrary) -> dict[str, int]:
    """Each on its own, by one thread."""
    found = {}
    for name, (loads, instruction, result, operands, _) in CASES.items():
        content = np.array([*operands, *[0] * (8 - len(operands))], np.uint64).view(np.uint32)
        kind, register = result.split()
        body = f"{loads}{instruction};\nst.global.{kind} [%rd0+56], {register};"
        ended = emulator.run(entry(body), threads=1, fill=lambda _, content=content: content)
        assert ended.outcome == Outcome.OK, f"{name}: {ended.message}"
        found[name] = int(ended.words(8, dtype=np.uint64)[7])
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_that_of_a_gpu(results: dict[str, int], name: str) -> None:
    assert f"{results[name]:x}" == f"{CASES[name][-1]:x}"
