"""Single instructions of emulated GPUs: against numpy where it has the same, by hand where not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

A = np.array(
    [0, 1, 2, 3, 7, 31, 32, 100, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 1, 2**32 - 7, 65535, 65536, 12345] * 2, np.uint32
)
B = np.array(
    [
        1,
        2,
        3,
        32,
        5,
        33,
        8,
        7,
        2,
        2**32 - 1,
        3,
        2,
        9,
        10,
        11,
        4,
        0,
        31,
        64,
        6,
        2**31,
        13,
        1,
        255,
        0,
        5,
        7,
        2**32 - 1,
        16,
        3,
        1,
        2,
    ],
    np.uint32,
)
C = np.roll(A, 5)
WORDS = np.concatenate([A, B, C])
LOADS = """
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd2, %rd2, %rd0;
    ld.global.u32 %r10, [%rd2];
    ld.global.u32 %r11, [%rd2+128];
    ld.global.u32 %r12, [%rd2+256];
"""


def signed(values: np.ndarray) -> np.ndarray:
    return values.view(np.int32).astype(np.int64)


def nth_one(mask: int, base: int, n: int) -> int:
    """Place of the n-th one of a mask from a place on, downwards if n is negative; all ones if there is none."""
    places = range(base, 32) if n > 0 else range(base, -1, -1)
    return dict(enumerate((at for at in places if int(mask) >> at & 1), 1)).get(abs(n), 2**32 - 1)


def shifted(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Left; 0 where by at least 32."""
    return np.where(by > 31, 0, values.astype(np.uint64) << np.minimum(by, 31).astype(np.uint64))


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All ones where the divisor is 0."""
    return np.where(b == 0, 2**32 - 1, a // np.maximum(b, 1))


INTEGER: dict[str, Callable[[], np.ndarray]] = {
    "add.u32 %r9, %r10, %r11": lambda: A.astype(np.uint64) + B,
    "sub.s32 %r9, %r10, %r11": lambda: A.astype(np.int64) - B,
    "mul.lo.u32 %r9, %r10, %r11": lambda: A.astype(np.uint64) * B,
    "mul.hi.u32 %r9, %r10, %r11": lambda: A.astype(np.uint64) * B >> np.uint64(32),
    "mul.hi.s32 %r9, %r10, %r11": lambda: signed(A) * signed(B) >> 32,
    "mad.lo.s32 %r9, %r10, %r11, %r12": lambda: A.astype(np.uint64) * B + C,
    "div.u32 %r9, %r10, %r11": lambda: divided(A, B),
    "rem.u32 %r9, %r10, %r11": lambda: np.where(B == 0, 2**32 - 1, A % np.maximum(B, 1)),
    "min.s32 %r9, %r10, %r11": lambda: np.minimum(signed(A), signed(B)),
    "max.u32 %r9, %r10, %r11": lambda: np.maximum(A, B),
    "abs.s32 %r9, %r10": lambda: np.abs(signed(A)),
    "neg.s32 %r9, %r10": lambda: -signed(A),
    "and.b32 %r9, %r10, %r11": lambda: A & B,
    "xor.b32 %r9, %r10, %r11": lambda: A ^ B,
    "not.b32 %r9, %r10": lambda: ~A,
    "shl.b32 %r9, %r10, %r11": lambda: shifted(A, B),
    "shr.u32 %r9, %r10, %r11": lambda: np.where(B > 31, 0, A >> np.minimum(B, 31)),
    "shr.s32 %r9, %r10, %r11": lambda: signed(A) >> np.minimum(B, 31).astype(np.int64),
    "popc.b32 %r9, %r10": lambda: np.array([bin(a).count("1") for a in A]),
    "clz.b32 %r9, %r10": lambda: np.array([32 - int(a).bit_length() for a in A]),
    "brev.b32 %r9, %r10": lambda: np.array([int(f"{a:032b}"[::-1], 2) for a in A]),
    "fns.b32 %r9, %r10, 1, 2": lambda: np.array([nth_one(a, 1, 2) for a in A]),
    "fns.b32 %r9, %r10, 31, -3": lambda: np.array([nth_one(a, 31, -3) for a in A]),
    "fns.b32 %r9, %r10, 5, 0": lambda: np.where(A >> 5 & 1, 5, 2**32 - 1),
    "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r10": lambda: (
        A.view(np.uint16).reshape(8, 8).T.copy().view(np.uint32).ravel()
    ),
    "prmt.b32 %r9, %r10, %r11, 0x5410": lambda: (A & 0xFFFF) | B.astype(np.uint64) << np.uint64(16),
    "lop3.b32 %r9, %r10, %r11, %r12, 0x96": lambda: A ^ B ^ C,
    "bfe.u32 %r9, %r10, 4, 8": lambda: A >> 4 & 0xFF,
    "bfi.b32 %r9, %r10, %r11, 8, 4": lambda: (B & ~np.uint32(0xF00)) | (A & 0xF) << 8,
    "shf.l.wrap.b32 %r9, %r10, %r11, 8": lambda: B << 8 | A >> 24,
    "sad.u32 %r9, %r10, %r11, %r12": lambda: np.abs(A.astype(np.int64) - B) + C,
    "dp4a.u32.u32 %r9, %r10, %r11, 5": lambda: 5 + sum((A >> 8 * i & 255) * (B >> 8 * i & 255) for i in range(4)),
    "cvt.u32.u8 %r9, %r10": lambda: A & 0xFF,
    "cvt.s32.s8 %r9, %r10": lambda: A.astype(np.uint8).view(np.int8).astype(np.int64),
    "cvt.sat.u8.u32 %r9, %r10": lambda: np.minimum(A, 255),
    "setp.lt.s32 %p1, %r10, %r11;\nselp.u32 %r9, %r12, 3, %p1": lambda: np.where(signed(A) < signed(B), C, 3),
    "setp.ge.and.u32 %p1|%p2, %r10, %r11, 1;\nselp.u32 %r9, 1, 0, %p2": lambda: A < B,
    "shfl.sync.bfly.b32 %r9, %r10, 3, 31, 0xffffffff": lambda: A[np.arange(32) ^ 3],
    "shfl.sync.up.b32 %r9, %r10, 2, 0, 0xffffffff": lambda: np.concatenate([A[:2], A[:-2]]),
    "shfl.sync.idx.b32 %r9|%p1, %r10, 9, 0x181f, 0xffffffff": lambda: A[np.arange(32) // 8 * 8 + 1],
    "redux.sync.max.u32 %r9, %r10, 0xffffffff": lambda: np.full(32, A.max()),
    "redux.sync.add.s32 %r9, %r11, 0xffffffff": lambda: np.full(32, B.astype(np.uint64).sum()),
    "match.any.sync.b32 %r9, %r10, 0xffffffff": lambda: np.array([1 << i % 16 | 1 << i % 16 + 16 for i in range(32)]),
    "add.cc.u32 %r8, %r10, %r11;\naddc.u32 %r9, 0, 0": lambda: A.astype(np.uint64) + B >> np.uint64(32),
    "atom.global.add.u32 %r9, [%rd0+1024], 2": lambda: 2 * np.arange(32),
    "mov.b64 %rd3, {%r10, %r11};\nshr.u64 %rd3, %rd3, 32;\ncvt.u32.u64 %r9, %rd3": lambda: B,
}


@pytest.fixture(scope="module")
def integer_results(emulator: EmulatorLibrary) -> dict[str, np.ndarray]:
    """All of `INTEGER` in one kernel, each to its own part of the heap."""
    body = LOADS
    for index, instruction in enumerate(INTEGER):
        body += f"{instruction};\nst.global.u32 [%rd2+{4096 + 128 * index}], %r9;\n"
    ended = emulator.run(entry(body), fill=lambda _: WORDS)
    assert ended.outcome == Outcome.OK, ended.message
    words = ended.words(1024 + 32 * len(INTEGER))
    return {name: words[1024 + 32 * index :][:32] for index, name in enumerate(INTEGER)}


@pytest.mark.parametrize("instruction", INTEGER)
def test_integer_instructions(integer_results: dict[str, np.ndarray], instruction: str) -> None:
    expected = np.asarray(INTEGER[instruction]()).astype(np.uint64).astype(np.uint32)
    np.testing.assert_array_equal(integer_results[instruction], expected)


X = np.array(
    [0.0, -0.0, 1.0, -1.5, 3.7, 1e-40, 1e38, np.inf, -np.inf, np.nan, 0.1, 2.5, 3.5, -2.5, 65520.0, 1e-8] * 2,
    np.float32,
)
Y = np.array(
    [1.0, 2.0, 3.0, 0.3, -7.1, 1e-3, 1e10, -np.inf, 1.0, 2.0, 0.2, np.nan, -0.0, 5.0, 3.0, 1e-8] + [0.7] * 16,
    np.float32,
)


def half(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest even; NaN as GPUs write it."""
    with np.errstate(over="ignore"):
        return np.where(np.isnan(values), 0x7FFF, values.astype(np.float16).view(np.uint16))


def brain(values: np.ndarray) -> np.ndarray:
    words = values.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(values), 0x7FFF, words + 0x7FFF + (words >> np.uint64(16) & np.uint64(1)) >> np.uint64(16))


FLOAT: dict[str, Callable[[], np.ndarray]] = {
    "add.f32 %f9, %f10, %f11": lambda: X + Y,
    "sub.f32 %f9, %f10, %f11": lambda: X - Y,
    "mul.rn.f32 %f9, %f10, %f11": lambda: X * Y,
    "div.rn.f32 %f9, %f10, %f11": lambda: X / Y,
    "fma.rn.f32 %f9, %f10, %f11, %f10": lambda: (X.astype(np.float64) * Y + X).astype(np.float32),
    "sqrt.rn.f32 %f9, %f10": lambda: np.sqrt(X),
    "max.f32 %f9, %f10, %f11": lambda: np.fmax(X, Y),
    "min.NaN.f32 %f9, %f10, %f11": lambda: np.minimum(X, Y),
    "abs.f32 %f9, %f10": lambda: np.abs(X),
    "add.sat.f32 %f9, %f10, %f11": lambda: np.nan_to_num(np.clip(X + Y, 0, 1), nan=0.0),
    "mul.ftz.f32 %f9, %f10, %f10": lambda: np.where(np.abs(X * X) < 2.0**-126, 0, X * X),
    "cvt.rni.f32.f32 %f9, %f10": lambda: np.rint(X),
    "cvt.rmi.f32.f32 %f9, %f10": lambda: np.floor(X),
    "cvt.rn.f16.f32 %rs1, %f10;\ncvt.f32.f16 %f9, %rs1": lambda: X.astype(np.float16).astype(np.float32),
    "cvt.rzi.s32.f32 %r9, %f11;\ncvt.rn.f32.s32 %f9, %r9": lambda: np.nan_to_num(
        np.trunc(np.clip(Y, -(2.0**31), 2.0**31)), nan=0
    ),
    "cvt.f64.f32 %fd1, %f10;\nmul.f64 %fd1, %fd1, %fd1;\ncvt.rn.f32.f64 %f9, %fd1": lambda: X * X,
    "add.rz.f32 %f9, %f10, 0f3DCCCCCD": lambda: truncated_sum(X, np.float32(0.1)),
}


def truncated_sum(x: np.ndarray, y: np.float32) -> np.ndarray:
    exact = x.astype(np.float64) + float(y)
    nearest = exact.astype(np.float32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    return np.where(away & np.isfinite(exact), np.nextafter(nearest, np.float32(0)), nearest)


@pytest.fixture(scope="module")
def float_results(emulator: EmulatorLibrary) -> dict[str, np.ndarray]:
    """All of `FLOAT` in one kernel."""
    body = LOADS + "mov.b32 %f10, %r10;\nmov.b32 %f11, %r11;\n"
    for index, instruction in enumerate(FLOAT):
        body += f"{instruction};\nst.global.f32 [%rd2+{4096 + 128 * index}], %f9;\n"
    ended = emulator.run(entry(body), fill=lambda _: np.concatenate([X, Y]))
    assert ended.outcome == Outcome.OK, ended.message
    words = ended.words(1024 + 32 * len(FLOAT))
    return {name: words[1024 + 32 * index :][:32] for index, name in enumerate(FLOAT)}


@pytest.mark.parametrize("instruction", FLOAT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float_instructions(float_results: dict[str, np.ndarray], instruction: str) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(FLOAT[instruction]()).astype(np.float32)
    got = float_results[instruction].view(np.float32)
    np.testing.assert_array_equal(got, expected)
    computed = np.isnan(got) & ~np.isnan(X)
    assert set(float_results[instruction][computed]) <= {0x7FFFFFFF}  # the NaN of GPUs


def test_pairs_of_small_floats_are_rounded_once(emulator: EmulatorLibrary) -> None:
    body = (
        LOADS
        + """
    mov.b32 %f10, %r10;
    mov.b32 %f11, %r11;
    cvt.rn.f16x2.f32 %r20, %f10, %f11;
    cvt.rn.bf16x2.f32 %r21, %f10, %f11;
    st.global.u32 [%rd2+4096], %r20;
    st.global.u32 [%rd2+4224], %r21;
"""
    )
    ended = emulator.run(entry(body), fill=lambda _: np.concatenate([X, Y]))
    words = ended.words(1088)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(words[1024:1056], half(X).astype(np.uint32) << 16 | half(Y))
        np.testing.assert_array_equal(words[1056:], (brain(X) << 16 | brain(Y)).astype(np.uint32))


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_of_integers(emulator: EmulatorLibrary, seed: int) -> None:
    """Random sequences of instructions on eight registers, with branches, against the same in numpy."""
    rng = np.random.default_rng(seed)
    registers = [rng.integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32) for _ in range(8)]
    content = np.concatenate(registers)
    lines = [f"ld.global.u32 %r{20 + i}, [%rd2+{128 * i}];" for i in range(8)]
    for step in range(120):
        d, a, b = rng.integers(0, 8, 3)
        name, result = RANDOM[rng.integers(len(RANDOM))]
        value = result(registers[a].astype(np.uint64), registers[b].astype(np.uint64)).astype(np.uint32)
        if step % 3:
            lines.append(f"{name} %r{20 + d}, %r{20 + a}, %r{20 + b};")
            registers[d] = value
        else:  # only in lanes where one register is less than another
            p, q = rng.integers(0, 8, 2)
            taken = registers[p] < registers[q]
            jump = [f"setp.ge.u32 %p1, %r{20 + p}, %r{20 + q};", f"@%p1 bra L{step};"]
            lines += [*jump, f"{name} %r{20 + d}, %r{20 + a}, %r{20 + b};", f"L{step}:"]
            registers[d] = np.where(taken, value, registers[d])
    lines += [f"st.global.u32 [%rd2+{4096 + 128 * i}], %r{20 + i};" for i in range(8)]
    start = "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %rd0;\n"
    ended = emulator.run(entry(start + "\n".join(lines)), fill=lambda _: content)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(1280)[1024:].reshape(8, 32), np.stack(registers))


RANDOM: list[tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    ("add.u32", lambda a, b: a + b),
    ("sub.u32", lambda a, b: a - b),
    ("mul.lo.u32", lambda a, b: a * b),
    ("mul.hi.u32", lambda a, b: a * b >> np.uint64(32)),
    ("xor.b32", lambda a, b: a ^ b),
    ("or.b32", lambda a, b: a | b),
    ("max.u32", np.maximum),
    ("min.u32", np.minimum),
    ("shl.b32", lambda a, b: np.where(b > 31, np.uint64(0), a << np.minimum(b, np.uint64(31)))),
    ("shr.u32", lambda a, b: np.where(b > 31, np.uint64(0), a >> np.minimum(b, np.uint64(31)))),
]


def test_registers_of_each_width(emulator: EmulatorLibrary) -> None:
    """Loads extend by the sign of their type to the width of their register; stores take the lower part."""
    body = """
    ld.global.s8 %r2, [%rd0];
    ld.global.u8 %rs1, [%rd0];
    cvt.u32.u16 %r3, %rs1;
    ld.global.s16 %rd3, [%rd0];
    cvt.u32.u64 %r4, %rd3;
    add.u32 %r5, %r2, %r3;
    add.u32 %r5, %r5, %r4;
    st.global.u8 [%rd0+4], %r5;
"""
    ended = emulator.run(
        entry(body + store_each("%r5").replace("[%rd50]", "[%rd50+128]")), fill=lambda _: np.array([0xFF80], np.uint32)
    )
    total = (-128 + 128 - 128) % 2**32
    assert set(ended.words(64)[32:]) == {total}
    assert ended.segments[0][4] == total % 256
