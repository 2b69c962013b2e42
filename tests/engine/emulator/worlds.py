"""Runs PTX on emulated GPUs, by the emulator's C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pkb_gym.engine.rankside.emulator_library import BODY, Options, Outcome, Report, load_emulator

SEGMENT_BYTES = 1 << 20
HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"
_DIMENSIONS = ctypes.c_uint32 * 3


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        outcome: see there.
        message: what was wrong.
        steps: warp instructions that were executed.
        segments: what lies in the ranks' heaps, as bytes.
    """

    outcome: Outcome
    message: str
    steps: int
    segments: list[np.ndarray]

    def words(self, count: int, rank: int = 0, dtype: type = np.uint32) -> np.ndarray:
        """The first numbers of a rank's heap."""
        return self.segments[rank][: count * np.dtype(dtype).itemsize].view(dtype)


class EmulatorLibrary:
    """The compiled emulator.

    Args:
        path: of the shared library.
    """

    def __init__(self, path: Path) -> None:
        self._library = load_emulator(str(path))
        self._library.pkb_emu_load_ptx.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        pointers = ctypes.POINTER(ctypes.c_uint32)
        self._library.pkb_emu_launch.argtypes = (
            *(ctypes.c_void_p, ctypes.c_char_p, pointers, pointers, pointers, ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_void_p),
        )

    def run(
        self,
        ptx: str,
        *,
        threads: int = 32,
        blocks: int = 1,
        cluster: int = 1,
        dynamic_shared: int = 0,
        ranks: int = 1,
        policy: int = 0,
        seed: int = 0,
        multiprocessors: int = 2,
        kernel: str = "kernel",
        fill: Callable[[int], np.ndarray] | None = None,
        max_steps: int = 20_000_000,
    ) -> Ended:
        """Launches a kernel on each rank; its parameters are the addresses of all ranks' heaps, then its rank.

        Args:
            ptx: what follows the header.
            fill: rank -> what its heap holds at first.
            others: of the launch and the schedule.
        """
        library = self._library
        options = Options(ctypes.sizeof(Options), ranks, SEGMENT_BYTES, policy, multiprocessors, seed, max_steps, 120)
        world = library.pkb_emu_create(ctypes.byref(options))
        assert world, library.pkb_emu_error(None)
        heaps = [library.pkb_emu_segment(world, rank) for rank in range(ranks)]
        arrays = [np.frombuffer((ctypes.c_char * SEGMENT_BYTES).from_address(heap), np.uint8) for heap in heaps]
        for rank, array in enumerate(arrays):
            if fill is not None:
                content = fill(rank).view(np.uint8)
                array.flags.writeable = True
                array[: len(content)] = content
        problems: list[str] = []

        def body(_: object, rank: int) -> int:
            if library.pkb_emu_load_ptx(world, (HEADER + ptx).encode()) < 0:
                problems.append(library.pkb_emu_error(world).decode())
                return 1
            values: Sequence[object] = [*(ctypes.c_uint64(heap) for heap in heaps), ctypes.c_uint32(rank)]
            arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            shapes = [_DIMENSIONS(size, 1, 1) for size in (blocks, threads, cluster)]
            status = library.pkb_emu_launch(world, kernel.encode(), *shapes, dynamic_shared, arguments)
            if status:
                problems.append(f"the launch failed with error {status}")
                return status
            return int(library.pkb_emu_synchronize(world) < 0)

        report = Report(struct_bytes=ctypes.sizeof(Report))
        assert library.pkb_emu_run(world, BODY(body), None, ctypes.byref(report)) == 0
        ended = Ended(
            Outcome(report.outcome),
            "\n".join([(report.message or b"").decode(), *problems]),
            report.steps,
            [array.copy() for array in arrays],
        )
        library.pkb_emu_destroy(world)
        return ended


def entry(body: str, *, ranks: int = 1, before: str = "") -> str:
    """A kernel `kernel`: %rd0 is the address of rank 0's heap, %rd1 that of rank 1, %r0 the rank, %r1 the thread."""
    heaps = ", ".join(f".param .u64 heap{rank}" for rank in range(ranks))
    loads = "\n".join(f"ld.param.u64 %rd{rank}, [heap{rank}];" for rank in range(ranks))
    return f"""{before}
.visible .entry kernel({heaps}, .param .u32 rank) {{
.reg .pred %p<20>; .reg .b16 %rs<40>; .reg .b32 %r<80>; .reg .b64 %rd<60>; .reg .f32 %f<80>; .reg .f64 %fd<20>;
{loads}
ld.param.u32 %r0, [rank];
mov.u32 %r1, %tid.x;
{body}
ret;
}}
"""


def store_each(register: str, kind: str = "u32") -> str:
    """Stores a register of each thread at its place in rank 0's heap."""
    size = {"u32": 4, "f32": 4, "u64": 8, "f64": 8}[kind]
    return f"mul.wide.u32 %rd50, %r1, {size};\nadd.u64 %rd50, %rd50, %rd0;\nst.global.{kind} [%rd50], {register};\n"
