"""Matrix instructions of emulated GPUs against numpy: wgmma from each layout of shared memory, ldmatrix, stmatrix."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

SHARED = ".shared .align 1024 .b8 memory[32768];"
B_AT = 16384
"""Of the second matrix in shared memory."""
OUT_AT = 65536
DEPTH = 16


def copied_to_shared(threads: int, size: int) -> str:
    """The first bytes of the heap, by all threads."""
    step = 16 * threads
    lines = ["shl.b32 %r2, %r1, 4;", "mov.u32 %r3, memory;", "add.u32 %r3, %r3, %r2;"]
    lines += ["cvt.u64.u32 %rd2, %r2;", "add.u64 %rd2, %rd2, %rd0;"]
    for at in range(0, size, step):
        lines.append(f"ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd2+{at}];")
        lines.append(f"st.shared.v4.u32 [%r3+{at}], {{%r4, %r5, %r6, %r7}};")
    return "\n".join([*lines, "bar.sync 0;", "fence.proxy.async;\n"])


Layout = Callable[[np.ndarray], tuple[np.ndarray, int, int, int, int]]
"""A matrix (rows or columns of the product, depth) -> bytes, leading and stride offset, swizzle, bytes of a k step."""


def along_k(matrix: np.ndarray) -> tuple[np.ndarray, int, int, int, int]:
    """Core matrices of 8 rows by 16 bytes, one after the other; those along k first."""
    rows, depth = matrix.shape
    cores = matrix.reshape(rows // 8, 8, depth // 8, 8).transpose(0, 2, 1, 3)
    return cores.reshape(-1).view(np.uint8), 128, 128 * (depth // 8), 0, 256


def along_k_swizzled(units: int) -> Layout:
    """Rows of 2, 4 or 8 units of 16 bytes; a row exchanges its units by its place in 128 bytes times 8."""

    def lay_out(matrix: np.ndarray) -> tuple[np.ndarray, int, int, int, int]:
        rows, depth = matrix.shape
        assert depth == 8 * units
        to = np.zeros(rows * units * 16, np.uint8)
        of_bytes = matrix.view(np.uint8).reshape(rows, units, 16)
        for row, unit in product(range(rows), range(units)):
            line, place = divmod((row * units + unit), 8)  # lines of 128 bytes
            place ^= line % units
            to[16 * (8 * line + place) :][:16] = of_bytes[row, unit]
        return to, 16, 128 * units, {8: 1, 4: 2, 2: 3}[units], 32

    return lay_out


def along_rows_swizzled(matrix: np.ndarray) -> tuple[np.ndarray, int, int, int, int]:
    """Panels of 64 rows; in a panel each k has 128 bytes, whose units are exchanged by k modulo 8."""
    rows, depth = matrix.shape
    to = np.zeros(rows * depth * 2, np.uint8)
    for row, k in product(range(rows), range(depth)):
        panel, place = divmod(row, 64)
        unit = (place // 8) ^ (k % 8)
        at = panel * depth * 128 + k * 128 + unit * 16 + place % 8 * 2
        to[at : at + 2] = matrix[row, k : k + 1].view(np.uint8)
    return to, depth * 128, 1024, 1, 2048


A_LAYOUTS = {"plain": along_k, "32B": along_k_swizzled(2), "64B": along_k_swizzled(4), "128B": along_k_swizzled(8)}
B_LAYOUTS = A_LAYOUTS | {"rows": along_rows_swizzled}


def descriptor(at: int, leading: int, stride: int, swizzle: int) -> int:
    """Of a matrix in shared memory, as the PTX manual has it."""
    return at >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | swizzle << 62


@pytest.mark.parametrize(
    ("a_layout", "b_layout", "columns", "step"),
    [
        ("plain", "plain", 16, 0),
        ("plain", "plain", 8, 1),
        ("128B", "64B", 24, 1),
        ("64B", "32B", 8, 0),
        ("128B", "128B", 16, 3),
        ("32B", "rows", 128, 0),
        ("64B", "rows", 64, 1),
        ("registers", "128B", 8, 2),
    ],
)
def test_products_of_a_warpgroup(emulator: EmulatorLibrary, a_layout: str, b_layout: str, columns: int, step: int):
    """m64nNk16 of f16 on small integers, the step-th 16 of a longer depth; B is negated, the sums begin with others."""
    rng = np.random.default_rng(columns)
    of_layout = {"32B": 16, "64B": 32, "128B": 64, "plain": 32, "rows": 16 * (step + 1), "registers": 64}
    a = rng.integers(-5, 6, (64, of_layout[a_layout])).astype(np.float16)
    b = rng.integers(-5, 6, (columns, of_layout[b_layout])).astype(np.float16)
    a_step, b_step = (min(step, size // DEPTH - 1) for size in (a.shape[1], b.shape[1]))
    content = np.zeros(32768, np.uint8)
    operand_a, b_rows = "%rd10", int(b_layout == "rows")
    body = copied_to_shared(128, 32768)
    if a_layout == "registers":
        content[: a.size * 2] = np.ascontiguousarray(a).view(np.uint8).reshape(-1)
        operand_a = "{%r10, %r11, %r12, %r13}"
        body += "shr.u32 %r2, %r1, 5;\nand.b32 %r3, %r1, 31;\nshr.u32 %r4, %r3, 2;\nmad.lo.u32 %r4, %r2, 16, %r4;\n"
        body += f"and.b32 %r5, %r3, 3;\nshl.b32 %r5, %r5, 2;\nmad.lo.u32 %r4, %r4, {2 * a.shape[1]}, %r5;\n"
        for i in range(4):
            at = 2 * DEPTH * a_step + i % 2 * 8 * 2 * a.shape[1] + i // 2 * 16
            body += f"ld.shared.u32 %r{10 + i}, [%r4+{at}];\n"
    else:
        data, *of_a, distance = A_LAYOUTS[a_layout](a)
        content[: len(data)] = data
        body += f"mov.u64 %rd10, {descriptor(distance * a_step, *of_a)};\n"
    data, *of_b, distance = B_LAYOUTS[b_layout](b)
    content[B_AT : B_AT + len(data)] = data
    body += f"mov.u64 %rd11, {descriptor(B_AT + distance * b_step, *of_b)};\n"
    sums = columns // 2
    body += "cvt.rn.f32.u32 %f70, %r1;\n" + "".join(f"add.f32 %f{i}, %f70, 0f{0x3F800000:08X};\n" for i in range(sums))
    names = ", ".join(f"%f{i}" for i in range(sums))
    flags = f"1, -1, {b_rows}" if a_layout == "registers" else f"1, -1, 0, {b_rows}"
    body += f"""setp.ge.u32 %p1, %r1, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{names}}}, {operand_a}, %rd11, %p1, {flags};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mul.wide.u32 %rd3, %r1, {4 * sums};
    add.u64 %rd3, %rd3, %rd0;
    """
    body += "".join(f"st.global.f32 [%rd3+{OUT_AT + 4 * i}], %f{i};\n" for i in range(sums))
    ended = emulator.run(entry(body, before=SHARED), threads=128, fill=lambda _: content)
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][OUT_AT:].view(np.float32)[: 128 * sums].reshape(128, sums)
    of_steps = [m[:, DEPTH * s : DEPTH * (s + 1)].astype(np.int64) for m, s in ((a, a_step), (b, b_step))]
    expected = -(of_steps[0] @ of_steps[1].T)
    thread, i = np.meshgrid(np.arange(128), np.arange(sums), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    np.testing.assert_array_equal(got, expected[row, column] + thread + 1)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_of_8_by_8_to_registers_and_back(emulator: EmulatorLibrary, count: int, transposed: bool):
    """Rows lie anywhere in shared memory; what is loaded is stored at another place."""
    rng = np.random.default_rng(count)
    rows = rng.permutation(64)[: 8 * count]
    content = rng.integers(0, 2**16, (64, 8)).astype(np.uint16)
    places = np.zeros(64, np.uint32)
    places[: 8 * count] = 16 * rows
    names = ", ".join(f"%r{10 + i}" for i in range(count))
    mode = f"x{count}" + (".trans" if transposed else "")
    body = (
        copied_to_shared(32, 2048)
        + f"""
    ld.shared.u32 %r20, [%r21+1024];
    ldmatrix.sync.aligned.m8n8.{mode}.shared.b16 {{{names}}}, [%r20];
    shl.b32 %r22, %r1, 4;
    stmatrix.sync.aligned.m8n8.{mode}.shared.b16 [%r22+2048], {{{names}}};
    bar.sync 0;
    mul.wide.u32 %rd3, %r1, 16;
    add.u64 %rd3, %rd3, %rd0;
    ld.shared.v4.u32 {{%r30, %r31, %r32, %r33}}, [%r22+2048];
    st.global.v4.u32 [%rd3+8192], {{%r30, %r31, %r32, %r33}};
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd3, %rd3, %rd0;
    """
    )
    body = body.replace("ld.shared.u32 %r20", "shl.b32 %r21, %r1, 2;\nld.shared.u32 %r20")
    body += "".join(f"st.global.u32 [%rd3+{4096 + 128 * i}], %r{10 + i};\n" for i in range(count))
    fill = np.concatenate([content.reshape(-1).view(np.uint8), places.view(np.uint8)])
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: fill)
    assert ended.outcome == Outcome.OK, ended.message
    matrices = content[rows].reshape(count, 8, 8)
    lane = np.arange(32)
    for m, matrix in enumerate(matrices):
        seen = (matrix.T if transposed else matrix).astype(np.uint32)
        expected = seen[lane // 4, lane % 4 * 2] | seen[lane // 4, lane % 4 * 2 + 1] << 16
        np.testing.assert_array_equal(ended.segments[0][4096 + 128 * m :][:128].view(np.uint32), expected)
    back = ended.segments[0][8192:][: 128 * count].view(np.uint16).reshape(count, 8, 8)
    np.testing.assert_array_equal(back, matrices)


MMA = [
    # depth, types of the sums and operands, and what is added up of single bits
    (8, "f32", "f16", ""),
    (16, "f32", "f16", ""),
    (16, "f16", "f16", ""),
    (16, "f32", "bf16", ""),
    (4, "f32", "tf32", ""),
    (8, "f32", "tf32", ""),
    (32, "f32", "e4m3", ""),
    (32, "f32", "e5m2", ""),
    (32, "s32", "s8", ""),
    (16, "s32", "u8", ""),
    (256, "s32", "b1", ".and.popc"),
    (128, "s32", "b1", ".xor.popc"),
]
OCTETS = {  # whole numbers in 8 bits
    "e4m3": {-4: 0xC8, -2: 0xC0, -1: 0xB8, 0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48},
    "e5m2": {-4: 0xC4, -2: 0xC0, -1: 0xBC, 0: 0x00, 1: 0x3C, 2: 0x40, 3: 0x42, 4: 0x44},
}


@pytest.mark.parametrize(("depth", "sums", "operands", "of_bits"), MMA)
def test_products_of_registers(emulator: EmulatorLibrary, depth: int, sums: str, operands: str, of_bits: str):
    """Operands are small whole numbers, so that sums are exact; words of 32 bits lie along the depth of a and b."""
    rng = np.random.default_rng(depth)
    a, b = (rng.choice([-4, -2, -1, 0, 1, 2, 3, 4], (rows, depth)) for rows in (16, 8))
    c = rng.integers(-9, 10, (16, 8))
    if operands in ("u8", "b1"):
        a, b = np.abs(a) & (1 if operands == "b1" else ~0), np.abs(b) & (1 if operands == "b1" else ~0)
    product = (a[:, None] ^ b).sum(axis=2) if "xor" in of_bits else a @ b.T
    words = [words_of(matrix, operands) for matrix in (a, b)]
    lane = np.arange(32)
    row, at = lane // 4, lane % 4
    of_a, of_b = words[0].shape[1] // 2, words[0].shape[1] // 4
    loaded = [words[0][row + 8 * (i % 2), at + i // 2 * 4] for i in range(of_a)]
    loaded += [words[1][row, at + 4 * i] for i in range(of_b)]
    of_sums = 2 if sums == "f16" else 4
    start = c.astype(np.float16).view(np.uint32) if sums == "f16" else encoded(c, sums).view(np.uint32)
    places = [(row + 8 * i, at) if sums == "f16" else (row + i // 2 * 8, at * 2 + i % 2) for i in range(of_sums)]
    loaded += [start[place] for place in places]
    kind = "f" if sums == "f32" else "r"
    registers = [*(f"%r{10 + i}" for i in range(of_a + of_b)), *(f"%{kind}{20 + i}" for i in range(of_sums))]
    listed = ["{" + ", ".join(part) + "}" for part in np.split(np.array(registers), [of_a, of_a + of_b])]
    body = "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %rd0;\n"
    body += "".join(f"ld.global.b32 {register}, [%rd2+{128 * i}];\n" for i, register in enumerate(registers))
    types = f"{sums}.{operands}.{operands}.{sums}{of_bits}"
    body += f"mma.sync.aligned.m16n8k{depth}.row.col.{types} {listed[2]}, {listed[0]}, {listed[1]}, {listed[2]};\n"
    stored = registers[of_a + of_b :]
    body += "".join(f"st.global.b32 [%rd2+{4096 + 128 * i}], {register};\n" for i, register in enumerate(stored))
    ended = emulator.run(entry(body), fill=lambda _: np.concatenate(loaded))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][4096:][: 128 * of_sums].view(np.uint32).reshape(of_sums, 32)
    expected = product + c
    bits = expected.astype(np.float16).view(np.uint32) if sums == "f16" else encoded(expected, sums).view(np.uint32)
    for i, place in enumerate(places):
        np.testing.assert_array_equal(got[i], bits[place])


def words_of(matrix: np.ndarray, dtype: str) -> np.ndarray:
    """The rows of a matrix in words of 32 bits, the first element in the lowest bits."""
    if dtype == "b1":
        octets = np.packbits(matrix.astype(np.uint8), axis=1, bitorder="little")
    elif dtype in OCTETS:
        octets = np.vectorize(OCTETS[dtype].get)(matrix).astype(np.uint8)
    else:
        octets = encoded(matrix, dtype)
    return np.ascontiguousarray(octets).view(np.uint32)


WMMA = [
    # shape, operands' type, sums' type, layouts of a, b and the sums
    ("m16n16k16", "f16", "f32", "row", "col", "row"),
    ("m16n16k16", "f16", "f16", "col", "row", "col"),
    ("m16n16k16", "bf16", "f32", "row", "row", "row"),
    ("m32n8k16", "bf16", "f32", "col", "col", "col"),
    ("m8n32k16", "f16", "f32", "row", "row", "row"),
    ("m16n16k8", "tf32", "f32", "row", "col", "row"),
    ("m16n16k16", "s8", "s32", "row", "col", "row"),
    ("m8n8k4", "f64", "f64", "row", "col", "row"),
]
NUMPY = {
    "f16": np.float16,
    "f32": np.float32,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
    "f64": np.float64,
}


def encoded(matrix: np.ndarray, dtype: str) -> np.ndarray:
    """The bits of whole numbers in a dtype of PTX."""
    if dtype == "bf16":
        return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return matrix.astype(NUMPY[dtype])


@pytest.mark.parametrize(("shape", "operands", "sums", "a_layout", "b_layout", "layout"), WMMA)
def test_products_of_fragments(
    emulator: EmulatorLibrary, shape: str, operands: str, sums: str, a_layout: str, b_layout: str, layout: str
):
    """Matrices lie in larger ones, with a stride of their own; nothing else there is touched."""
    m, n, k = (int(part) for part in re.findall(r"\d+", shape))
    rng = np.random.default_rng(m + n)
    a, b, c = (rng.integers(-5, 6, size) for size in ((m, k), (k, n), (m, n)))
    placed = []
    for matrix, by in ((a, a_layout), (b, b_layout), (c, layout)):
        of_rows = matrix if by == "row" else matrix.T
        wider = np.zeros((of_rows.shape[0], of_rows.shape[1] + 8), matrix.dtype)
        wider[:, : of_rows.shape[1]] = of_rows
        placed.append(wider)
    content = np.zeros(16384, np.uint8)
    for i, (wider, dtype) in enumerate(zip(placed, (operands, operands, sums), strict=True)):
        data = encoded(wider, dtype).reshape(-1).view(np.uint8)
        content[4096 * i : 4096 * i + data.size] = data
    of_a, of_b, of_sums = FRAGMENTS[shape, operands, sums]
    kind, of_operands = {"f64": "fd", "f32": "f"}.get(sums, "r"), "fd" if operands == "f64" else "r"
    firsts = (10, 11, 12, 14) if operands == "f64" else (10, 30, 50, 60)
    counts = zip("abcd", (of_operands, of_operands, kind, kind), firsts, (of_a, of_b, of_sums, of_sums), strict=True)
    names = {which: [f"%{r}{i}" for i in range(first, first + count)] for which, r, first, count in counts}
    listed = {name: "{" + ", ".join(registers) + "}" for name, registers in names.items()}
    types = f"{sums}.{sums}" if operands == "f16" else f"{sums}.{operands}.{operands}.{sums}"
    body = "".join(
        f"wmma.load.{which}.sync.aligned.{by}.{shape}.global.{dtype} {listed[which]}, [%rd0+{4096 * i}], {stride};\n"
        for i, (which, by, dtype, stride) in enumerate(
            [
                ("a", a_layout, operands, placed[0].shape[1]),
                ("b", b_layout, operands, placed[1].shape[1]),
                ("c", layout, sums, placed[2].shape[1]),
            ]
        )
    )
    body += f"wmma.mma.sync.aligned.{a_layout}.{b_layout}.{shape}.{types} {listed['d']}, {listed['a']}, {listed['b']}, "
    body += f"{listed['c']};\n"
    body += f"mov.u32 %r5, {placed[2].shape[1]};\n"
    body += f"wmma.store.d.sync.aligned.{layout}.{shape}.global.{sums} [%rd0+{OUT_AT}], {listed['d']}, %r5;\n"
    ended = emulator.run(entry(body), fill=lambda _: content)
    assert ended.outcome == Outcome.OK, ended.message
    wider = np.zeros_like(placed[2])
    product = a @ b + c
    wider[:, : wider.shape[1] - 8] = product if layout == "row" else product.T
    expected = encoded(wider, sums).reshape(-1)
    got = ended.segments[0][OUT_AT:].view(expected.dtype)[: expected.size]
    ends = wider.size - 8  # behind the last element nothing is stored
    np.testing.assert_array_equal(got[:ends], expected[:ends])


FRAGMENTS = {
    ("m16n16k16", "f16", "f32"): (8, 8, 8),
    ("m16n16k16", "f16", "f16"): (8, 8, 4),
    ("m16n16k16", "bf16", "f32"): (4, 4, 8),
    ("m32n8k16", "bf16", "f32"): (8, 2, 8),
    ("m8n32k16", "f16", "f32"): (8, 8, 8),
    ("m16n16k8", "tf32", "f32"): (4, 4, 8),
    ("m16n16k16", "s8", "s32"): (2, 2, 8),
    ("m8n8k4", "f64", "f64"): (1, 1, 2),
}
"""Shape and types -> registers of a, b, and the sums, by the manual."""


def test_a_fragment_must_lie_in_memory(emulator: EmulatorLibrary):
    """Its last row ends behind the heap."""
    names = ", ".join(f"%f{i}" for i in range(8))
    body = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{names}}}, [%rd0], 1000000;\n"
    ended = emulator.run(entry(body))
    assert ended.outcome == Outcome.ILLEGAL_ADDRESS
