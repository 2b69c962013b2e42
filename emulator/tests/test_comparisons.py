"""`set` and `setp` of emulated GPUs: of pairs of small floats, with a second predicate, and joined with a third."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

VALUES = np.array([0.0, -0.0, 1.0, -1.5, 2.0, 1.0, np.inf, -np.inf, np.nan, 0.1, 3e-6, -3e-6, 5.0, 1.5, -2.5, 100.0])
"""3e-6 is subnormal in float16."""
HALVES = VALUES.astype(np.float16)
BRAINS = (VALUES.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # cut off

LOW_A, HIGH_A, LOW_B, HIGH_B = (np.random.default_rng(seed).integers(0, 16, 32) for seed in range(4))
LOW_B[::5], HIGH_B[::7] = LOW_A[::5], HIGH_A[::7]  # some are equal
LANE = np.arange(32)
ODD = LANE % 2 == 1

Both = tuple[np.ndarray, np.ndarray]


def words(bits: np.ndarray) -> np.ndarray:
    """The operands a and b of all lanes, pairs of 16-bit floats."""
    bits = bits.view(np.uint16).astype(np.uint32)
    return np.concatenate([bits[LOW_A] | bits[HIGH_A] << 16, bits[LOW_B] | bits[HIGH_B] << 16])


def halves(compare: Callable[[np.ndarray, np.ndarray], np.ndarray], values: np.ndarray = HALVES) -> Both:
    return compare(values[LOW_A], values[LOW_B]), compare(values[HIGH_A], values[HIGH_B])


def brains(compare: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Both:
    return halves(compare, (BRAINS.astype(np.uint32) << 16).view(np.float32))


def pair(both: Both, true: int = 0xFFFF) -> np.ndarray:
    """A word whose halves are `true` where the operands' halves compare so."""
    return np.asarray(np.where(both[0], true, 0) | np.where(both[1], true, 0) << 16)


def predicates(both: Both) -> np.ndarray:
    """Bit 0 is the first predicate, bit 1 the second."""
    return np.asarray(both[0] | both[1].astype(np.int64) << 1)


def joined(operation: Callable[[np.ndarray, np.ndarray], np.ndarray], both: Both, third: np.ndarray = ODD) -> Both:
    return operation(both[0], third), operation(both[1], third)


def not_greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """leu: true of a NaN too."""
    return ~(a > b)


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """ne: not true of a NaN."""
    return (a < b) | (a > b)


def of_flushed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return flushed(a) < flushed(b)


def flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < np.finfo(np.float16).tiny, 0, values)


def signed_less() -> np.ndarray:
    a, b = words(HALVES).view(np.int32).reshape(2, 32)
    return a < b


HALF: dict[str, Callable[[], np.ndarray]] = {
    "set.gt.u32.f16x2 %r9, %r10, %r11": lambda: pair(halves(np.greater)),
    "set.leu.s32.f16x2 %r9, %r10, %r11": lambda: pair(halves(not_greater)),
    "set.eq.f16x2.f16x2 %r9, %r10, %r11": lambda: pair(halves(np.equal), 0x3C00),
    "set.lt.and.u32.f16x2 %r9, %r10, %r11, %p9": lambda: pair(joined(np.logical_and, halves(np.less))),
    "set.lt.xor.f16x2.f16x2 %r9, %r10, %r11, !%p9": lambda: pair(joined(np.logical_xor, halves(np.less), ~ODD), 0x3C00),
    "set.lt.ftz.u32.f16x2 %r9, %r10, %r11": lambda: pair(halves(of_flushed)),
    "set.ge.u32.f16 %r9, %rs1, %rs2": lambda: np.where(halves(np.greater_equal)[0], 0xFFFFFFFF, 0),
    "set.ge.u16.f16 %rs9, %rs1, %rs2;\ncvt.u32.u16 %r9, %rs9": lambda: np.where(halves(np.greater_equal)[0], 0xFFFF, 0),
    "set.ge.f16.f16 %rs9, %rs1, %rs2;\ncvt.u32.u16 %r9, %rs9": lambda: np.where(halves(np.greater_equal)[0], 0x3C00, 0),
    "set.lt.f32.f16 %r9, %rs1, %rs2": lambda: np.where(halves(np.less)[0], 0x3F800000, 0),
    "set.lt.f16.s32 %rs9, %r10, %r11;\ncvt.u32.u16 %r9, %rs9": lambda: np.where(signed_less(), 0x3C00, 0),
    "set.lt.u32.s32 %r9, %r10, %r11": lambda: np.where(signed_less(), 0xFFFFFFFF, 0),
    "set.lt.or.f32.s32 %f9, %r10, %r11, %p9;\nmov.b32 %r9, %f9": lambda: np.where(signed_less() | ODD, 0x3F800000, 0),
    "setp.gt.f16x2 %p1|%p2, %r10, %r11": lambda: predicates(halves(np.greater)),
    "setp.leu.f16x2 %p1|%p2, %r10, %r11": lambda: predicates(halves(not_greater)),
    "setp.lt.ftz.f16x2 %p1|%p2, %r10, %r11": lambda: predicates(halves(of_flushed)),
    "setp.ne.or.f16x2 %p1|%p2, %r10, %r11, !%p9": lambda: predicates(joined(np.logical_or, halves(different), ~ODD)),
    "setp.lt.s32 %p1|%p2, %r10, %r11": lambda: predicates((signed_less(), ~signed_less())),
    "setp.lt.xor.s32 %p1|%p2, %r10, %r11, !%p9": lambda: predicates(
        joined(np.logical_xor, (signed_less(), ~signed_less()), ~ODD)
    ),
    "setp.lt.ftz.f16 %p1|%p2, %rs1, %rs2": lambda: predicates((halves(of_flushed)[0], ~halves(of_flushed)[0])),
}
BRAIN: dict[str, Callable[[], np.ndarray]] = {
    "set.gt.u32.bf16x2 %r9, %r10, %r11": lambda: pair(brains(np.greater)),
    "set.eq.bf16x2.bf16x2 %r9, %r10, %r11": lambda: pair(brains(np.equal), 0x3F80),
    "set.lt.or.u32.bf16x2 %r9, %r10, %r11, !%p9": lambda: pair(joined(np.logical_or, brains(np.less), ~ODD)),
    "set.ge.bf16.bf16 %rs9, %rs1, %rs2;\ncvt.u32.u16 %r9, %rs9": lambda: np.where(
        brains(np.greater_equal)[0], 0x3F80, 0
    ),
    "setp.gt.and.bf16x2 %p1|%p2, %r10, %r11, %p9": lambda: predicates(joined(np.logical_and, brains(np.greater))),
}
ALL = HALF | BRAIN

START = """
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd2, %rd2, %rd0;
    and.b32 %r2, %r1, 1;
    setp.ne.u32 %p9, %r2, 0;
"""


def operands(offset: int) -> str:
    return f"""
    ld.global.u32 %r10, [%rd2+{offset}];
    ld.global.u32 %r11, [%rd2+{offset + 128}];
    cvt.u16.u32 %rs1, %r10;
    cvt.u16.u32 %rs2, %r11;
"""


@pytest.fixture(scope="module")
def results(emulator: EmulatorLibrary) -> dict[str, np.ndarray]:
    """All of them in one kernel, each to its own part of the heap."""
    body = START
    for index, instruction in enumerate(ALL):
        if index in (0, len(HALF)):
            body += operands(256 if index else 0)
        body += f"{instruction};\n"
        if instruction.startswith("setp"):
            body += "selp.u32 %r3, 1, 0, %p1;\nselp.u32 %r4, 2, 0, %p2;\nor.b32 %r9, %r3, %r4;\n"
        body += f"st.global.u32 [%rd2+{4096 + 128 * index}], %r9;\n"
    ended = emulator.run(entry(body), fill=lambda _: np.concatenate([words(HALVES), words(BRAINS)]))
    assert ended.outcome == Outcome.OK, ended.message
    found = ended.words(1024 + 32 * len(ALL))[1024:].reshape(-1, 32)
    return dict(zip(ALL, found, strict=True))


@pytest.mark.parametrize("instruction", ALL)
def test_comparisons(results: dict[str, np.ndarray], instruction: str) -> None:
    with np.errstate(invalid="ignore"):
        expected = np.asarray(ALL[instruction]()).astype(np.uint32)
    np.testing.assert_array_equal(results[instruction], expected)
    assert np.unique(expected).size > 1
