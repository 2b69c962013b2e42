"""Runs PTX on emulated GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rank_emulator import POLICIES, EmulatorError, Outcome, Schedule, World

SEGMENT_BYTES = 1 << 20
HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        outcome: Outcome of the run, as in `Run`.
        message: Description of the error.
        steps: Number of executed warp instructions.
        segments: Content of the ranks' segments, as bytes.
    """

    outcome: Outcome
    message: str
    steps: int
    segments: list[np.ndarray]

    def words(self, count: int, rank: int = 0, dtype: type = np.uint32) -> np.ndarray:
        """The first numbers of a rank's segment."""
        return self.segments[rank][: count * np.dtype(dtype).itemsize].view(dtype)


class EmulatorLibrary:
    """The compiled emulator.

    Args:
        path: Path of the shared library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

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
        """Launches a kernel on each rank; its parameters are the addresses of all ranks' segments, then its rank.

        Args:
            ptx: PTX after the header.
            fill: Initial content of each rank's segment, by rank.
            others: Further arguments of the launch and the schedule.
        """
        world = World(
            self.path,
            ranks,
            segment_bytes=SEGMENT_BYTES,
            schedule=Schedule(list(POLICIES)[policy], seed),
            multiprocessors=multiprocessors,
            max_steps=max_steps,
            max_seconds=120,
        )

        def body(rank: int) -> None:
            world.load_ptx(HEADER + ptx)
            world.launch(
                kernel,
                [*map(ctypes.c_uint64, world.segments), ctypes.c_uint32(rank)],
                grid=(blocks, 1, 1),
                block=(threads, 1, 1),
                cluster=(cluster, 1, 1),
                dynamic_shared_bytes=dynamic_shared,
            )
            if not world.synchronize():
                raise EmulatorError("the run has ended")

        with world:
            segments = [np.frombuffer(world.memory(rank), np.uint8) for rank in range(ranks)]
            for rank, segment in enumerate(segments):
                if fill is not None:
                    content = fill(rank).view(np.uint8)
                    segment[: len(content)] = content
            ended = world.run(body)
            message = "\n".join([ended.message, *map(str, ended.errors.values())])
            return Ended(ended.outcome, message, ended.steps, [segment.copy() for segment in segments])


def entry(body: str, *, ranks: int = 1, before: str = "") -> str:
    """A kernel `kernel`: %rd0 is the address of rank 0's segment, %rd1 that of rank 1, %r0 the rank, %r1 the thread."""
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
    """Stores a register of each thread at its place in rank 0's segment."""
    size = {"u32": 4, "f32": 4, "u64": 8, "f64": 8}[kind]
    return f"mul.wide.u32 %rd50, %r1, {size};\nadd.u64 %rd50, %rd50, %rd0;\nst.global.{kind} [%rd50], {register};\n"
