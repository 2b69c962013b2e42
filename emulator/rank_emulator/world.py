"""A world: GPUs of several ranks in this process, each rank with a thread of the host and a segment of memory."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .errors import EmulatorError
from .findings import Findings
from .interface import (
    BODY,
    DIMENSIONS,
    FUNCTION,
    DetectorOptions,
    Options,
    Outcome,
    RegionKind,
    Report,
    load_emulator,
)
from .schedules import POLICIES, Schedule

Shape = tuple[int, int, int]

_UPPER_HALF = 1 << 63


def is_device_address(address: int) -> bool:
    """Whether an address can be one of emulated GPUs: in the half of the address space that no process can map."""
    return address >= _UPPER_HALF


@dataclass(frozen=True)
class Ended:
    """The end of a run.

    Attributes:
        outcome: Outcome of the run.
        rank: Rank at fault, from 0; None where it is no single rank's.
        message: A line for each finding of the emulator: rank, kernel, block, thread, instruction and source line.
            Empty after `Outcome.OK`.
        steps: Warp instructions that the world has executed so far.
        errors: Exceptions of the ranks' bodies by rank, in the order in which they were raised.
    """

    outcome: Outcome
    rank: int | None = None
    message: str = ""
    steps: int = 0
    errors: Mapping[int, BaseException] = field(default_factory=dict)


class World:
    """Ranks with an emulated GPU each; a context manager that ends them.

    Of all ranks' threads and GPUs one runs at a time; a schedule decides which. Each rank has a segment of memory that
    the kernels of all ranks can read and write, filled with zeros at first.

    Args:
        emulator: Shared library that `build` made.
        world_size: Number of ranks, 1 to 16.
        segment_bytes: Size of each rank's segment in bytes.
        schedule: Order of execution, until `set_schedule` changes it.
        multiprocessors: Number of multiprocessors of each GPU; 0 for 8.
        max_steps: Warp instructions of all ranks after which a run ends; 0 for no limit.
        max_seconds: Wall-clock time of a run in seconds after which it ends; 0 for no limit.
        detect_races: Whether each access is checked for what orders it, and memory for what was written.
        strict: Whether the detector holds kernels to the letter of PTX's memory model, where GPUs are known to do more:
            the end of a kernel releases nothing for flags of later kernels then.
        max_findings: Findings that the detector keeps; 0 for 64.
        label_output: Whether lines that host code prints have the rank in front, as those of kernels have. It holds for
            the process from then on.
        one_process: Whether the ranks are GPUs of one process, for which `run` calls the body of rank 0 alone.
        call_sites: Whether findings name the places where host code calls copies and fills: "+host" as file, and as
            line the offset of the call in its library.

    Attributes:
        world_size: Number of ranks.
        segment_bytes: Size of each rank's segment in bytes.
        segments: Address of each rank's segment, the same for all ranks. As all addresses of emulated GPUs it is for
            kernels and functions of CUDA: host code that touches it ends the run with `Outcome.ILLEGAL_ADDRESS`.
        multicast: Address that stands for the segments of all ranks, in instructions of multicast (`multimem`).

    Raises:
        EmulatorError: The emulator cannot be loaded, or refuses an argument.
    """

    def __init__(
        self,
        emulator: Path | str,
        world_size: int,
        *,
        segment_bytes: int = 1 << 20,
        schedule: Schedule = Schedule(),  # noqa: B008  # frozen
        multiprocessors: int = 0,
        max_steps: int = 0,
        max_seconds: int = 0,
        detect_races: bool = False,
        strict: bool = False,
        max_findings: int = 0,
        label_output: bool = False,
        one_process: bool = False,
        call_sites: bool = False,
    ) -> None:
        self._library = load_emulator(str(emulator))
        if label_output:
            self._library.pkb_emu_print_by_rank()
        options = Options(
            struct_bytes=ctypes.sizeof(Options),
            world_size=world_size,
            segment_bytes=segment_bytes,
            policy=POLICIES[schedule.policy],
            multiprocessors=multiprocessors,
            seed=schedule.seed,
            max_steps=max_steps,
            max_seconds=max_seconds,
            one_process=one_process,
            call_sites=call_sites,
        )
        self._world: int | None = self._library.pkb_emu_create(ctypes.byref(options))
        if self._world is None:
            raise EmulatorError(f"no world could be emulated: {_text(self._library.pkb_emu_error(None))}")
        self.world_size, self.segment_bytes = world_size, segment_bytes
        self.segments = [int(self._library.pkb_emu_segment(self._world, rank)) for rank in range(world_size)]
        self.multicast = int(self._library.pkb_emu_multicast_segment(self._world))
        self._detector = self._observe(max_findings, strict) if detect_races else None
        self._callbacks: list[Any] = []  # ctypes frees a function when nobody refers to it

    def _observe(self, max_findings: int, strict: bool) -> int:
        options = DetectorOptions(
            struct_bytes=ctypes.sizeof(DetectorOptions), strict=strict, races=1, max_findings=max_findings
        )
        detector: int | None = self._library.pkb_emu_detector_create(ctypes.byref(options))
        if detector is None:
            raise EmulatorError("no detector could be made: memory is short")
        self._library.pkb_emu_observe(self._world, self._library.pkb_emu_detector_observer(detector))
        return detector

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the world and frees its memory; further calls change nothing."""
        if self._world is not None:
            self._library.pkb_emu_destroy(self._world)
        if self._detector is not None:
            self._library.pkb_emu_detector_destroy(self._detector)
        self._world = self._detector = None

    # ---- memory -----------------------------------------------------------------------------------------------------

    def memory(self, rank: int) -> memoryview:
        """The bytes of a rank's segment, writable, until `close`."""
        own = self.own_address(self.segments[rank], self.segment_bytes)
        assert own is not None
        return memoryview((ctypes.c_char * self.segment_bytes).from_address(own)).cast("B")

    def own_address(self, address: int, nbytes: int) -> int | None:
        """The address by which this process reaches memory that kernels may touch.

        Args:
            address: Address of the first byte, as kernels use it.
            nbytes: Size in bytes, at least 1.

        Returns:
            The address; None where kernels may not touch all of the bytes.
        """
        own: int | None = self._library.pkb_emu_own(self._world, address, nbytes)
        return own

    def first_foreign(self, address: int, nbytes: int, before: int | None = None) -> int | None:
        """Looks for bytes of a GPU that something else than the GPU has written.

        Args:
            address: Address of the first byte, as kernels use it.
            nbytes: Size in bytes, at least 1.
            before: Address of a copy of the bytes at the time of `set_initialised(..., is_initialised=False)` or
                `watch_writes`; None for newly allocated memory.

        Returns:
            The place of the first byte that has changed, though no kernel, copy or fill has written it; None where
            there is none, and for memory that host code may touch.
        """
        found = int(self._library.pkb_emu_foreign(self._world, address, nbytes, before))
        return None if found < 0 else found

    def add_region(
        self,
        rank: int,
        kind: RegionKind,
        name: str,
        address: int,
        nbytes: int,
        *,
        element_bytes: int = 1,
        is_initialised: bool = True,
    ) -> int:
        """Names memory, for messages and for the detector.

        Args:
            rank: Rank that owns the memory.
            kind: Use of the memory. `HOST` is memory of this process outside of all segments, which kernels may touch.
            name: Name of the tensor.
            address: Address of the first byte.
            nbytes: Size in bytes, at least 1.
            element_bytes: Size of an element in bytes, at least 1.
            is_initialised: Whether the memory has been written.

        Returns:
            The number of the region, for `remove_region`.
        """
        region: int = self._library.pkb_emu_region(
            self._world, rank, kind, name.encode(), address, nbytes, element_bytes, is_initialised
        )
        return region

    def remove_region(self, region: int) -> None:
        """Forgets the name of memory."""
        self._library.pkb_emu_region_remove(self._world, region)

    def set_initialised(self, address: int, nbytes: int, *, is_initialised: bool) -> None:
        """Says whether memory has been written: to `first_foreign`, and to the detector if there is one."""
        self._library.pkb_emu_set_initialised(self._world, address, nbytes, is_initialised)

    def watch_writes(self, address: int, nbytes: int) -> None:
        """Forgets what a GPU has written there so far, to `first_foreign` alone: the memory stays initialised."""
        self._library.pkb_emu_watch_writes(self._world, address, nbytes)

    def watch_host_writes(self, address: int, nbytes: int, *, is_on: bool = True) -> None:
        """Looks for what host code changes there past the GPU, also where a GPU has written: for `first_foreign`."""
        self._library.pkb_emu_watch_host_writes(self._world, address, nbytes, is_on)

    def trace_host_accesses(self, function: int) -> None:
        """Has a function called, of this process from now on, where host code touches memory of a GPU.

        Args:
            function: Address of a C function with the parameters of a signal handler (`sigaction`, SA_SIGINFO).
        """
        self._library.pkb_emu_trace(function)

    # ---- runs -------------------------------------------------------------------------------------------------------

    def set_schedule(self, schedule: Schedule, max_seconds: int = 0) -> None:
        """Sets the order of execution of the runs from now on, and their limit of wall-clock time in seconds."""
        self._library.pkb_emu_schedule(self._world, POLICIES[schedule.policy], schedule.seed, max_seconds)

    def run(self, body: Callable[[int], object]) -> Ended:
        """Calls `body(rank)` on each rank's thread, until all have returned and all streams are empty.

        After another outcome than `Outcome.OK` functions of CUDA fail with cudaErrorLaunchFailure, so that bodies
        return; a body that calls none keeps its thread.

        Raises:
            EmulatorError: The emulator failed.
        """
        errors: dict[int, BaseException] = {}

        def guarded(_: object, rank: int) -> int:
            try:
                body(rank)
            except BaseException as error:  # it is the rank's, and none of the caller
                errors[rank] = error
            return int(rank in errors)

        function, report = BODY(guarded), Report(struct_bytes=ctypes.sizeof(Report))
        self._callbacks.append(function)
        if self._library.pkb_emu_run(self._world, function, None, ctypes.byref(report)) < 0:
            raise EmulatorError(f"the emulator failed: {self._error()}")
        outcome = Outcome(report.outcome)
        if outcome is Outcome.OK:  # otherwise a thread may still be in its body
            self._callbacks.clear()
        rank = None if report.rank < 0 else int(report.rank)
        return Ended(outcome, rank, _text(report.message), int(report.steps), errors)

    def findings(self) -> Findings:
        """The detector's report on all runs so far; empty without `detect_races`."""
        if self._detector is None:
            return Findings()
        return Findings.parse(self._library.pkb_emu_detector_json(self._detector).decode(errors="replace"))

    # ---- in a body, on its rank's thread ----------------------------------------------------------------------------

    def load(self, library: bytes | str) -> ctypes.CDLL:
        """Loads a library on the rank that calls it.

        Args:
            library: Content of a library that `compile_cuda` made, of which the rank gets a copy; or the path of a file
                that no other rank loads.

        Raises:
            EmulatorError: The library cannot be loaded, or needs a function that the emulator lacks.
        """
        if isinstance(library, str):
            return self._load(library)
        with tempfile.NamedTemporaryFile(suffix=".so") as file:  # the dynamic linker knows a library by its path
            file.write(library)
            file.flush()
            return self._load(file.name)

    def _load(self, path: str) -> ctypes.CDLL:
        handle: int | None = self._library.pkb_emu_load(self._world, path.encode())
        if handle is None:
            raise EmulatorError(self._error())
        return ctypes.CDLL(path, handle=handle)

    def load_ptx(self, text: str) -> None:
        """Loads PTX on the rank that calls it; `launch` launches its kernels by name.

        Raises:
            EmulatorError: The text cannot be read.
        """
        if self._library.pkb_emu_load_ptx(self._world, text.encode()) < 0:
            raise EmulatorError(self._error())

    def launch(
        self,
        kernel: str,
        arguments: Sequence[Any],
        *,
        grid: Shape = (1, 1, 1),
        block: Shape = (32, 1, 1),
        cluster: Shape = (1, 1, 1),
        dynamic_shared_bytes: int = 0,
    ) -> None:
        """Launches a kernel of `load_ptx` on the default stream of the rank that calls it.

        Args:
            kernel: Name of the kernel.
            arguments: Parameters as values of ctypes, such as `c_uint64` for a pointer.
            grid: Blocks in each dimension.
            block: Threads of a block in each dimension.
            cluster: Blocks of a cluster in each dimension.
            dynamic_shared_bytes: Dynamic shared memory of a block in bytes.

        Raises:
            EmulatorError: There is no such kernel, or it cannot be launched.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        shapes = (DIMENSIONS(*grid), DIMENSIONS(*block), DIMENSIONS(*cluster))
        status = self._library.pkb_emu_launch(self._world, kernel.encode(), *shapes, dynamic_shared_bytes, pointers)
        if status:
            raise EmulatorError(self._error() if status < 0 else f"the launch failed with error {status}")

    def stream(self) -> int:
        """The default stream of the rank that calls it, as a cudaStream_t."""
        stream: int = self._library.pkb_emu_stream(self._world)
        return stream

    def arrive(self, call: int) -> None:
        """Enqueues the arrival of a call: the schedule may hold a rank back here."""
        self._library.pkb_emu_arrival(self._world, call)

    def depart(self, call: int) -> None:
        """Enqueues the departure of a call: the schedule may hold a rank back here."""
        self._library.pkb_emu_departure(self._world, call)

    def enqueue(self, function: Callable[[], object], name: str) -> None:
        """Enqueues a function of the host, which is called on another thread.

        Args:
            function: Function without arguments. It calls nothing of CUDA.
            name: Name of the operation in messages.
        """
        callback = FUNCTION(lambda _: function() and None)
        self._callbacks.append(callback)
        self._library.pkb_emu_enqueue(self._world, callback, None, name.encode())

    def synchronize(self) -> bool:
        """Waits until the default stream is empty; False where the run has ended before."""
        return bool(self._library.pkb_emu_synchronize(self._world) == 0)

    # ---- programs, on a rank's thread -------------------------------------------------------------------------------

    def call_main(self, function: int, count: int, arguments: int) -> int:
        """Calls a program's `main` as the process of the rank that calls it: `exit` ends it, and RANK tells its number.

        Args:
            function: Address of the function.
            count: Number of arguments, at least 1.
            arguments: Address of an array of their texts, ended by a null pointer.

        Returns:
            The status of the process.
        """
        return int(self._library.pkb_emu_main(function, count, arguments))

    def call_process(self, function: int, argument: int) -> int:
        """Calls `int f(void*)` as the process of the rank that calls it; as `call_main`."""
        return int(self._library.pkb_emu_process(function, argument))

    def exchange(self, name: str) -> bool:
        """A barrier of all ranks' hosts; False where the run has ended before.

        Args:
            name: Name of the barrier, for messages about ranks that wait there.
        """
        return bool(self._library.pkb_emu_exchange(name.encode(), None, None, 0) == 0)

    def last_cuda_error(self) -> str | None:
        """Name and text of the last error of the rank that calls, which is cleared; None where there is none."""
        error = int(self._library.CUDAGetLastError())
        if not error:
            return None
        name, text = (
            function(error) for function in (self._library.CUDAGetErrorName, self._library.CUDAGetErrorString)
        )
        return f"{_text(name)} ({_text(text)})"

    def _error(self) -> str:
        return _text(self._library.pkb_emu_error(self._world))


def _text(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")
