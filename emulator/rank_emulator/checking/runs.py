"""One run of a program: all ranks, under one schedule, in this process."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from rank_emulator.errors import EmulatorError
from rank_emulator.findings import Finding
from rank_emulator.interface import Outcome, RegionKind
from rank_emulator.schedules import Schedule
from rank_emulator.world import World

from .buffers import Buffer, Role, random_content, to_bytes
from .calls import LibraryCalls, Pointers, TritonCalls, load_library
from .host_lines import named, with_host_lines
from .programs import Program, compile_program
from .triton_kernels import TritonModule, TritonProgram

_KINDS = {Role.INPUT: RegionKind.ARGUMENT, Role.OUTPUT: RegionKind.OUTPUT, Role.STATE: RegionKind.SCRATCH}
_ALIGNMENT = 512
_HEAP_BYTES = 64 << 20
"""Size of the symmetric heap for a program's own allocations, beside the declared buffers."""
_MAX_OUTPUT = 20_000


@dataclass(frozen=True)
class Options:
    """How programs run.

    Attributes:
        calls: Number of calls of each rank, at least 1.
        keep_inputs: Whether inputs hold the same values in all calls, written once.
        seed: Seed of inputs and schedules.
        strict: Whether the detector holds programs to the letter of PTX's memory model.
        timeout_s: Wall-clock time of a run in seconds after which it ends.
        multiprocessors: Number of multiprocessors of each GPU.
        heap_bytes: Size of each rank's symmetric heap for allocations of NVSHMEM and NCCL, in bytes.
        one_process: Whether the ranks are GPUs of one process, which runs `main` once.
    """

    calls: int = 2
    keep_inputs: bool = False
    seed: int = 0
    strict: bool = False
    timeout_s: int = 120
    multiprocessors: int = 8
    heap_bytes: int = _HEAP_BYTES
    one_process: bool = False


@dataclass(frozen=True)
class Run:
    """The end of one run.

    Attributes:
        world_size: Number of ranks.
        schedule: Order of execution.
        outcome: Outcome of the run.
        message: Description of a failure; empty after `Outcome.OK`.
        rank: Rank at fault; None where it is no single rank's.
        findings: Errors that the detector has found.
        outputs: Bytes of each buffer that is no state after a call: call, rank, name of the buffer -> bytes.
        printed: Text that host code and kernels have printed, its beginning.
    """

    world_size: int
    schedule: Schedule
    outcome: Outcome
    message: str = ""
    rank: int | None = None
    findings: tuple[Finding, ...] = ()
    outputs: dict[tuple[int, int, str], bytes] = field(default_factory=dict)
    printed: str = ""


@dataclass(frozen=True)
class Built:
    """A program and what it was compiled to, for one number of ranks.

    Attributes:
        program: Declaration of the program, for this number of ranks.
        code: Library of a `Program`, or modules of a `TritonProgram`.
    """

    program: Program | TritonProgram
    code: bytes | tuple[TritonModule, ...]


def build_program(program: Program | TritonProgram, world_size: int) -> Built:
    """Compiles a program for a number of ranks.

    Raises:
        CompileError: nvcc refuses it.
        UsageError: Its declaration is not as it must be.
        EmulatorError: A compiler is missing, or Triton refuses a kernel.
    """
    of_ranks = program.of_ranks(world_size)
    if isinstance(of_ranks, TritonProgram):
        return Built(of_ranks, of_ranks.compile(world_size))
    return Built(of_ranks, compile_program(of_ranks, world_size))


def run_program(emulator: Path, built: Built, world_size: int, schedule: Schedule, options: Options) -> Run:
    """Runs a compiled program on all ranks.

    Args:
        emulator: The compiled emulator.
        built: The program, compiled for this number of ranks.
        world_size: Number of ranks, 1 to 16.
        schedule: Order of execution.
        options: How it runs.
    """
    offsets, declared_bytes = _layout(built.program.buffers, world_size)
    half = -(-max(declared_bytes, options.heap_bytes) // 4096) * 4096
    with World(
        emulator,
        world_size,
        segment_bytes=2 * half,
        schedule=schedule,
        multiprocessors=options.multiprocessors,
        max_seconds=options.timeout_s,
        detect_races=True,
        strict=options.strict,
        label_output=True,
        one_process=options.one_process,
        call_sites=isinstance(built.code, bytes),
    ) as world:
        ranks = _Ranks(world, built, offsets, options)
        with _printed() as printed:
            ended = world.run(ranks.run_main if built.program.has_main else ranks.run_calls)
        message, rank = ended.message, ended.rank
        if re.fullmatch(r"(rank \d+|the main thread) ended with status \d+", message) and ended.errors:
            # The later errors follow from the end of the run.
            rank, error = next(iter(ended.errors.items()))
            message = str(error)
        found = world.findings().findings
        if isinstance(built.code, bytes):
            message, found = named(message, built.code), with_host_lines(found, built.code)
        if options.one_process:
            message, found = of_gpus(message), tuple(_of_gpus(finding) for finding in found)
        text = printed[0] if printed else ""
        return Run(world_size, schedule, ended.outcome, message, rank, found, ranks.outputs, text)


def of_gpus(text: str) -> str:
    """A message about ranks that are GPUs of one process."""
    text = text.replace("no flag or barrier leads", "no event, wait of a host, flag or barrier leads")
    return re.sub(r"\brank(?= \d)", "GPU", re.sub(r"\b(one|a|any) rank\b", r"\1 GPU", text))


def _of_gpus(finding: Finding) -> Finding:
    return replace(finding, message=of_gpus(finding.message), exposure=of_gpus(finding.exposure or "") or None)


class _Ranks:
    """The ranks of a run, each with the bodies that its thread may call."""

    def __init__(self, world: World, built: Built, offsets: tuple[int, ...], options: Options) -> None:
        self._world, self._built, self._options, self._offsets = world, built, options, offsets
        self._buffers = built.program.buffers
        self.outputs: dict[tuple[int, int, str], bytes] = {}
        for rank in range(world.world_size):
            self._name_buffers(rank)

    def _address(self, rank: int, index: int) -> int:
        return self._world.segments[rank] + self._offsets[index]

    def _name_buffers(self, rank: int) -> None:
        world, count = self._world, len(self._buffers)
        for index, buffer in enumerate(self._buffers):
            is_initialised = buffer.role is not Role.OUTPUT
            self._name(
                rank, index, self._kind_of(buffer), buffer.name, buffer.nbytes, buffer.type.nbytes, is_initialised
            )
            if buffer.role is Role.STATE:
                self._fill(rank, index, to_bytes(np.full(buffer.shape, buffer.fill), buffer))
            elif buffer.role is Role.INPUT and self._options.keep_inputs:
                self._fill(rank, index, to_bytes(random_content(buffer, rank, 0, self._options.seed), buffer))
            table = np.array([self._address(other, index) for other in range(world.world_size)], np.uint64)
            self._name(
                rank, count + index, RegionKind.SCRATCH, f"{buffer.name}_table", table.nbytes, table.itemsize, True
            )
            self._fill(rank, count + index, table.tobytes())

    def _name(
        self, rank: int, index: int, kind: RegionKind, name: str, nbytes: int, element_bytes: int, is_initialised: bool
    ) -> None:
        address = self._address(rank, index)
        self._world.add_region(
            rank, kind, name, address, nbytes, element_bytes=element_bytes, is_initialised=is_initialised
        )

    def _kind_of(self, buffer: Buffer) -> RegionKind:
        """Arguments and outputs belong to others between calls; inputs that are kept do not."""
        is_kept = buffer.role is Role.INPUT and self._options.keep_inputs
        return RegionKind.SCRATCH if is_kept else _KINDS[buffer.role]

    def _fill(self, rank: int, index: int, content: bytes) -> None:
        offset = self._offsets[index]
        self._world.memory(rank)[offset : offset + len(content)] = content

    # ---- bodies -----------------------------------------------------------------------------------------------------

    def run_main(self, rank: int) -> None:
        """Runs `main` as the process of a rank."""
        program, code = self._built.program, self._built.code
        assert isinstance(program, Program)
        assert isinstance(code, bytes)
        words = [program.sources[0].stem.encode(), *(word.encode() for word in program.arguments)]
        arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        main = ctypes.cast(load_library(self._world, rank, code).main, ctypes.c_void_p)
        status = self._world.call_main(main.value or 0, len(words), ctypes.addressof(arguments))
        if status:
            where = "" if self._options.one_process else f" on rank {rank}"
            raise EmulatorError(f"main returned {status}{where}")

    def run_calls(self, rank: int) -> None:
        """Evaluates the setup, then the calls, in the order of the rank's stream."""
        world = self._world
        calls = self._calls_of(rank)
        calls.set_up()
        world.exchange("the setup of all ranks")
        for call in range(self._options.calls):
            world.arrive(call)
            world.enqueue(partial(self._begin, rank, call), "inputs")
            calls.call(call)
            world.depart(call)
            world.enqueue(partial(self._end, rank, call), "outputs")
        world.synchronize()

    def _calls_of(self, rank: int) -> LibraryCalls | TritonCalls:
        built, count = self._built, len(self._buffers)
        pointers = Pointers(
            rank=rank,
            world_size=self._world.world_size,
            names=tuple(buffer.name for buffer in self._buffers),
            of_ranks=tuple(
                tuple(self._address(other, index) for other in range(self._world.world_size)) for index in range(count)
            ),
            tables=tuple(self._address(rank, count + index) for index in range(count)),
            multicast=tuple(self._world.multicast + self._offsets[index] for index in range(count)),
        )
        if isinstance(built.program, TritonProgram):
            assert isinstance(built.code, tuple)
            return TritonCalls(self._world, built.code, pointers)
        assert isinstance(built.code, bytes)
        return LibraryCalls(self._world, built.code, pointers, has_setup=built.program.setup is not None)

    # ---- memory between calls, when the rank's stream comes to it ---------------------------------------------------

    def _begin(self, rank: int, call: int) -> None:
        for index, buffer in enumerate(self._buffers):
            if buffer.role is Role.STATE or (buffer.role is Role.INPUT and self._options.keep_inputs):
                continue
            is_input = buffer.role is Role.INPUT
            values = random_content(buffer, rank, call, self._options.seed) if is_input else None
            self._fill(rank, index, b"\xff" * buffer.nbytes if values is None else to_bytes(values, buffer))
            self._world.set_initialised(self._address(rank, index), buffer.nbytes, is_initialised=is_input)

    def _end(self, rank: int, call: int) -> None:
        memory = self._world.memory(rank)
        for offset, buffer in zip(self._offsets, self._buffers, strict=False):
            if buffer.role is not Role.STATE:
                self.outputs[call, rank, buffer.name] = bytes(memory[offset : offset + buffer.nbytes])


def _layout(buffers: tuple[Buffer, ...], world_size: int) -> tuple[tuple[int, ...], int]:
    """Offsets of the buffers and of their tables, and the size of all in bytes."""
    offsets, end = [], 0
    for nbytes in [*(buffer.nbytes for buffer in buffers), *(8 * world_size for _ in buffers)]:
        offsets.append(end)
        end = -(-(end + nbytes) // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT  # a gap, so that no buffer meets the next
    return tuple(offsets), end


@contextmanager
def _printed() -> Iterator[list[str]]:
    """Collects what this process prints; its beginning is the list's element afterwards."""
    found: list[str] = []
    with tempfile.TemporaryFile() as file:
        before = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield found
        finally:
            for descriptor, kept in zip((1, 2), before, strict=True):
                os.dup2(kept, descriptor)
                os.close(kept)
        file.seek(0)
        found.append(file.read(_MAX_OUTPUT).decode(errors="replace"))
