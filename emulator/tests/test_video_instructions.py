"""Video instructions against the pseudo code of the PTX ISA."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.tests.video import Video, forms
from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

FORMS = list(forms())
EDGES = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    0x80808080,
    0x7F807F80,
    0x01FF00FE,
]
WORDS = np.concatenate(
    [np.array(EDGES, np.uint32), np.random.default_rng(0).integers(0, 2**32, 80, np.uint64).astype(np.uint32)]
)
INPUTS = np.stack([WORDS[np.random.default_rng(1 + i).permutation(96)[:32]] for i in range(3)])
OUT_AT = 4096


def run(emulator: EmulatorLibrary, videos: list[Video]) -> np.ndarray:
    """Results of instructions, each of the 32 lanes' inputs."""
    body = "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd2, %rd2, %rd0;\n"
    body += "".join(f"ld.global.u32 %r{10 + i}, [%rd2+{128 * i}];\n" for i in range(3))
    for index, video in enumerate(videos):
        body += f"{video.text('%r9', '%r10', '%r11', '%r12')}\nst.global.u32 [%rd2+{OUT_AT + 128 * index}], %r9;\n"
    ended = emulator.run(entry(body), fill=lambda _: INPUTS.reshape(-1))
    assert ended.outcome == Outcome.OK, ended.message
    return ended.words(OUT_AT // 4 + 32 * len(videos))[OUT_AT // 4 :].reshape(-1, 32)


def test_all_forms(emulator: EmulatorLibrary) -> None:
    assert len(FORMS) > 1800
    results = run(emulator, FORMS)
    wrong = []
    for video, result in zip(FORMS, results, strict=True):
        expected = [video.computed(*map(int, words)) for words in INPUTS.T]
        if expected != result.tolist():
            wrong.append(video.text("d", "a", "b", "c"))
    assert wrong == []


def test_the_oracle_by_hand() -> None:
    assert Video("vabsdiff4.u32.u32.u32.add", c="c").computed(0x01_20_FF_00, 0x02_10_00_FF, 5) == 1 + 16 + 255 + 255 + 5
    assert Video("vadd.s32.s32.s32.sat", "b2", "b0", "h1", "c").computed(0x7F, 0x0001_0000, 0x11223344) == 0x117F3344
    assert Video("vavrg2.s32.s32.s32", "h1", "", "", "c").computed(0x0003_0000, 0x0004_0000, 0xAAAABBBB) == 0x0004BBBB
    assert Video("vmad.s32.u32.u32.sat", "", "-b0", "b0", "c").computed(200, 100, 7) == 2**32 - 19993
    assert Video("vset4.u32.u32.lt.add", "b31", "b7654", "b3210", "c").computed(0x04030201, 0x01020304, 10) == 11


@pytest.mark.parametrize(
    "instruction",
    [
        "vadd.u32.u32.u32.add %r9, %r10, %r11;",  # without its third operand
        "vadd2.u32.u32.u32 %r9, %r10, %r11;",
        "vadd4.u32.u32.u32 %r9.h0, %r10, %r11, %r12;",
        "vmin2.u32.u32.u32 %r9, %r10.h45, %r11, %r12;",
        "vadd.u32.u32 %r9, %r10, %r11;",
        "add.u32 %r9, %r10.b0, %r11;",
        "bfi.b32 %r9, %r10, -%r11, 8, 4;",
    ],
)
def test_what_is_no_video_instruction_is_refused(emulator: EmulatorLibrary, instruction: str) -> None:
    ended = emulator.run(entry(instruction))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION and instruction.split()[0] in ended.message
