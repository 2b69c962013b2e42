"""Tensor maps, bulk copies and mbarriers of emulated GPUs against numpy."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

MAP_AT, TENSOR_AT, SHARED_AT, OUT_AT = 512, 4096, 32768, 65536
SHARED = ".shared .align 1024 .b8 memory[16384]; .shared .align 8 .b8 barriers[64];"
MAGIC = 0x70616D726F736E74


def tensor_map(shape: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> np.ndarray:
    """A tensor map of float32, as in `tensor_map.h`, without the address. The first dimension is the innermost."""
    rank = len(shape)
    strides = [4 * int(np.prod(shape[: d + 1])) for d in range(rank - 1)]
    padded = [*shape, *[1] * (5 - rank)], [*strides, *[0] * (5 - rank)], [*box, *[1] * (5 - rank)]
    words = struct.pack("<QQ5Q4Q5H", MAGIC, 0, *padded[0], *padded[1][:4], *padded[2])
    words += struct.pack("<4B5BB", 4, rank, swizzle, 7, *[1] * 5, 0)
    return np.frombuffer(words, np.uint8)


WAIT = "{label}:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [{barrier}], {parity};\n@!%p1 bra {label};\n"
START = f"""
    mov.u32 %r2, memory;
    mov.u32 %r3, barriers;
    add.u64 %rd2, %rd0, {MAP_AT};
    add.u64 %rd3, %rd0, {TENSOR_AT};
    st.global.u64 [%rd2+8], %rd3;
    fence.proxy.async;
"""


def swizzled(content: np.ndarray, swizzle: int) -> np.ndarray:
    """Bytes of a box in shared memory: units of 16 bytes, exchanged by the number of their line of 128 bytes."""
    if not swizzle:
        return content
    units = content.reshape(-1, 16)
    to = np.zeros_like(units)
    for unit in range(len(units)):
        line, place = divmod(unit, 8)
        to[8 * line + (place ^ line % (2 * swizzle))] = units[unit]
    return to.reshape(-1)


BOXES = [
    ((12, 20), (8, 4), (2, 5), 0),
    ((12, 20), (8, 4), (-3, 18), 0),
    ((12, 20), (8, 16), (7, -2), 1),
    ((20, 20), (16, 16), (3, 9), 2),
    ((36, 24), (32, 16), (-5, 11), 4),
    ((12, 6, 5), (4, 3, 2), (9, 4, -1), 0),
    ((8, 4, 3, 4), (4, 2, 2, 3), (5, -1, 2, 0), 0),
]
"""Tensor, box and corner, innermost first, and how units are exchanged."""


def box_of(tensor: np.ndarray, box: tuple[int, ...], corner: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Places of a box that lie within the tensor: number in the box, index in the tensor (outermost first)."""
    found = []
    for number, offsets in enumerate(product(*(range(size) for size in reversed(box)))):
        index = tuple(c + o for c, o in zip(reversed(corner), offsets, strict=True))
        if all(0 <= i < size for i, size in zip(index, tensor.shape, strict=True)):
            found.append((number, index))
    return found


@pytest.mark.parametrize(("shape", "box", "corner", "swizzle"), BOXES)
def test_boxes_are_loaded_with_zeros_beyond_the_tensor(
    emulator: EmulatorLibrary, shape: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...], swizzle: int
):
    tensor = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape[::-1])
    size = 4 * int(np.prod(box))
    corners = ", ".join(f"%r{10 + d}" for d in range(len(shape)))
    load = f"cp.async.bulk.tensor.{len(shape)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    body = START + "".join(f"mov.u32 %r{10 + d}, {at};\n" for d, at in enumerate(corner))
    body += f"""
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {size};
    {load} [%r2], [%rd2, {{{corners}}}], [%r3];
WAIT:
    bar.sync 0;
    """
    body += WAIT.format(label="LOADED", barrier="%r3", parity=0) + dumped(size)
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: filled(tensor, tensor_map(shape, box, swizzle)))
    assert ended.outcome == Outcome.OK, ended.message
    expected = np.zeros(int(np.prod(box)), np.float32)
    for number, index in box_of(tensor, box, corner):
        expected[number] = tensor[index]
    got = ended.segments[0][OUT_AT : OUT_AT + size]
    np.testing.assert_array_equal(got.view(np.float32), swizzled(expected.view(np.uint8), swizzle).view(np.float32))


@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize(("shape", "box", "corner", "swizzle"), BOXES)
def test_boxes_are_stored_within_the_tensor_alone(
    emulator: EmulatorLibrary,
    shape: tuple[int, ...],
    box: tuple[int, ...],
    corner: tuple[int, ...],
    swizzle: int,
    reduces: bool,
):
    tensor = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape[::-1])
    values = 1000 + np.arange(np.prod(box), dtype=np.float32)
    size = values.nbytes
    corners = ", ".join(f"%r{10 + d}" for d in range(len(shape)))
    kind = "cp.reduce.async.bulk.tensor" if reduces else "cp.async.bulk.tensor"
    how = ".add.tile" if reduces else ".tile"
    body = (
        START
        + "".join(f"mov.u32 %r{10 + d}, {at};\n" for d, at in enumerate(corner))
        + """
    shl.b32 %r4, %r1, 2;
    add.u32 %r5, %r2, %r4;
    cvt.u64.u32 %rd4, %r4;
    add.u64 %rd4, %rd4, %rd0;
    """
    )
    for at in range(0, size, 128):
        body += f"ld.global.u32 %r6, [%rd4+{SHARED_AT + at}];\nst.shared.u32 [%r5+{at}], %r6;\n"
    body += f"""
    bar.sync 0;
    fence.proxy.async;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra END;
    {kind}.{len(shape)}d.global.shared::cta{how}.bulk_group [%rd2, {{{corners}}}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:
    bar.sync 0;
    """
    content = filled(tensor, tensor_map(shape, box, swizzle))
    laid_out = swizzled(values.view(np.uint8), swizzle)
    content[SHARED_AT : SHARED_AT + size] = laid_out
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: content)
    assert ended.outcome == Outcome.OK, ended.message
    expected = tensor.copy()
    for number, index in box_of(tensor, box, corner):
        expected[index] = values[number] + (tensor[index] if reduces else 0)
    got = ended.segments[0][TENSOR_AT : TENSOR_AT + tensor.nbytes].view(np.float32).reshape(tensor.shape)
    np.testing.assert_array_equal(got, expected)


def filled(tensor: np.ndarray, of_map: np.ndarray) -> np.ndarray:
    """The heap: the map, the tensor."""
    content = np.zeros(OUT_AT, np.uint8)
    content[MAP_AT : MAP_AT + len(of_map)] = of_map
    content[TENSOR_AT : TENSOR_AT + tensor.nbytes] = tensor.reshape(-1).view(np.uint8)
    return content


def dumped(size: int) -> str:
    """Copies shared memory to the heap, by one warp."""
    lines = ["shl.b32 %r4, %r1, 2;", "add.u32 %r5, %r2, %r4;", "cvt.u64.u32 %rd4, %r4;", "add.u64 %rd4, %rd4, %rd0;"]
    for at in range(0, size, 128):
        lines += [f"ld.shared.u32 %r6, [%r5+{at}];", f"st.global.u32 [%rd4+{OUT_AT + at}], %r6;"]
    return "\n".join(lines) + "\n"


CHUNKS, STAGES = 7, 2


def test_a_ring_of_stages_with_mbarriers(emulator: EmulatorLibrary):
    """One lane copies chunks into two stages, a warp consumes them in order, whatever the order of copies."""
    words = np.random.default_rng(0).integers(0, 2**32, (CHUNKS, 32), dtype=np.uint64).astype(np.uint32)
    expected = np.zeros(32, np.uint32)
    for chunk in words:
        expected = expected * np.uint32(3) + chunk
    for seed in range(6):
        ended = emulator.run(
            entry(ring(), before=SHARED), threads=64, policy=1, seed=seed, fill=lambda _: words.reshape(-1)
        )
        assert ended.outcome == Outcome.OK, ended.message
        np.testing.assert_array_equal(ended.segments[0][OUT_AT : OUT_AT + 128].view(np.uint32), expected)


def ring() -> str:
    """Barriers: full of each stage (1 arrival), empty of each (32)."""
    body = "mov.u32 %r2, memory;\nmov.u32 %r3, barriers;\nsetp.ne.u32 %p2, %r1, 0;\n@%p2 bra READY;\n"
    for stage in range(STAGES):
        body += f"mbarrier.init.shared::cta.b64 [%r3+{8 * stage}], 1;\n"
        body += f"mbarrier.init.shared::cta.b64 [%r3+{16 + 8 * stage}], 32;\n"
    body += (
        "READY:\nbar.sync 0;\nsetp.lt.u32 %p3, %r1, 32;\n@%p3 bra CONSUMER;\nsetp.ne.u32 %p2, %r1, 32;\n@%p2 bra END;\n"
    )
    for chunk in range(CHUNKS):
        stage, parity = chunk % STAGES, chunk // STAGES & 1
        body += WAIT.format(label=f"EMPTY{chunk}", barrier=f"%r3+{16 + 8 * stage}", parity=1 - parity)
        body += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{8 * stage}], 128;\n"
        body += f"add.u64 %rd3, %rd0, {128 * chunk};\n"
        body += "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        body += f"[%r2+{128 * stage}], [%rd3], 128, [%r3+{8 * stage}];\n"
    body += "bra END;\nCONSUMER:\nmov.u32 %r10, 0;\nshl.b32 %r4, %r1, 2;\nadd.u32 %r5, %r2, %r4;\n"
    for chunk in range(CHUNKS):
        stage, parity = chunk % STAGES, chunk // STAGES & 1
        body += WAIT.format(label=f"FULL{chunk}", barrier=f"%r3+{8 * stage}", parity=parity)
        body += f"ld.shared.u32 %r6, [%r5+{128 * stage}];\nmad.lo.u32 %r10, %r10, 3, %r6;\n"
        body += f"mbarrier.arrive.shared::cta.b64 _, [%r3+{16 + 8 * stage}];\n"
    return body + f"cvt.u64.u32 %rd4, %r4;\nadd.u64 %rd4, %rd4, %rd0;\nst.global.u32 [%rd4+{OUT_AT}], %r10;\nEND:\n"


@pytest.mark.parametrize("kind", ["noinc.", ""])
def test_an_arrival_that_waits_for_plain_copies(emulator: EmulatorLibrary, kind: str):
    """Each lane copies a word and arrives; a phase expects these arrivals, or one more of a lane that has seen them."""
    expects = 32 if kind else 1
    body = "mov.u32 %r2, memory;\nmov.u32 %r3, barriers;\nsetp.ne.u32 %p2, %r1, 0;\n@%p2 bra READY;\n"
    body += f"mbarrier.init.shared::cta.b64 [%r3], {expects};\nREADY:\nbar.sync 0;\nshl.b32 %r4, %r1, 2;\n"
    body += "add.u32 %r5, %r2, %r4;\ncvt.u64.u32 %rd4, %r4;\nadd.u64 %rd4, %rd4, %rd0;\n"
    body += "cp.async.ca.shared.global [%r5], [%rd4], 4;\n"
    body += f"cp.async.mbarrier.arrive.{kind}shared::cta.b64 [%r3];\nbar.warp.sync 0xffffffff;\n"
    if not kind:
        body += "@%p2 bra WAIT;\nmbarrier.arrive.shared::cta.b64 _, [%r3];\nWAIT:\n"
    body += WAIT.format(label="FULL", barrier="%r3", parity=0)
    body += "xor.b32 %r4, %r4, 124;\nadd.u32 %r5, %r2, %r4;\nld.shared.u32 %r6, [%r5];\n"
    body += f"st.global.u32 [%rd4+{OUT_AT}], %r6;\n"
    words = np.arange(1, 33, dtype=np.uint32)
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: words)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.segments[0][OUT_AT : OUT_AT + 128].view(np.uint32), words[::-1])


def test_phases_of_an_mbarrier(emulator: EmulatorLibrary):
    """Three arrivals end a phase; a dropped one is not expected again; bytes are waited for too."""
    probes: list[int] = []
    body = "mov.u32 %r3, barriers;\nmov.u32 %r9, 0;\n"

    def probe(parity: int, expected: bool) -> str:
        probes.append(expected)
        at = f"[%rd0+{OUT_AT + 4 * (len(probes) - 1)}]"
        test = f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r3], {parity};\n"
        return test + f"selp.u32 %r8, 1, 0, %p1;\nst.global.u32 {at}, %r8;\n"

    arrive = "mbarrier.arrive.shared::cta.b64 %rd5, [%r3];\n"
    body += "setp.ne.u32 %p2, %r1, 0;\n@%p2 bra END;\nmbarrier.init.shared::cta.b64 [%r3], 3;\n"
    body += probe(0, False) + probe(1, True) + arrive + "mbarrier.arrive.shared::cta.b64 %rd6, [%r3], 1;\n"
    body += probe(0, False) + "mbarrier.arrive_drop.shared::cta.b64 _, [%r3];\n" + probe(0, True) + probe(1, False)
    body += "mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd5, [%r3], 1;\n" + probe(1, False)
    body += "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 48;\n"
    body += arrive + probe(1, False) + "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], 32;\n" + probe(1, False)
    body += "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], 16;\n" + probe(1, True)
    body += "mbarrier.pending_count.b64 %r8, %rd6;\n" + f"st.global.u32 [%rd0+{OUT_AT + 4 * len(probes)}], %r8;\nEND:\n"
    ended = emulator.run(entry(body, before=SHARED))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][OUT_AT:].view(np.uint32)[: len(probes) + 1].tolist()
    assert got == [*probes, 2], "the state before the second arrival has two pending"
