"""Where a program runs: on the emulator, on the emulator with a fault, on a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np

from benchmarks.random_ptx.program import HEADER, PRELUDE, Program, Slot
from pkb_gym.engine.compile.nvcc import find_toolkit
from pkb_gym.engine.rankside.emulator_library import Outcome
from tests.engine.emulator.worlds import EmulatorLibrary


class SideError(Exception):
    """A side could not run a program."""


class RefusedError(SideError):
    """A side does not take this program; it runs others."""


class Side(Protocol):
    """Runs programs."""

    def run(self, program: Program) -> np.ndarray:
        """The content of memory afterwards.

        Raises:
            SideError: it did not end well.
        """
        ...


class EmulatedSide:
    """The emulator.

    Args:
        library: the compiled emulator.
    """

    def __init__(self, library: EmulatorLibrary) -> None:
        self._library = library

    def run(self, program: Program) -> np.ndarray:
        """See `Side.run`."""
        return self.run_text(program, program.ptx)

    def run_text(self, program: Program, ptx: str) -> np.ndarray:
        """Runs another text on the program's memory."""
        ended = self._library.run(
            PRELUDE + ptx,
            threads=program.threads,
            blocks=program.blocks,
            kernel=program.kernel,
            fill=lambda _: program.memory,
        )
        if ended.outcome != Outcome.OK:
            raise SideError(ended.message)
        return ended.segments[0][: len(program.memory)]


SWAPPED: Mapping[str, str] = {
    "add": "sub",
    "sub": "add",
    "min": "max",
    "max": "min",
    "and": "or",
    "or": "xor",
    "xor": "and",
    "mul": "add",
    "popc": "clz",
    "clz": "popc",
    "not": "cnot",
    "cnot": "not",
    "abs": "neg",
    "neg": "abs",
}
"""First part of an opcode -> the part that a fault puts in its place."""
NOT_SWAPPED = {"lo", "hi", "wide", "cc", "u16x2", "s16x2"}
"""Modifiers that another instruction has not."""


class FaultySide:
    """The emulator, with one instruction of each program in place of another.

    Args:
        side: the emulator.
        seed: of which instruction.
    """

    def __init__(self, side: EmulatedSide, seed: int) -> None:
        self._side, self._seed = side, seed

    def run(self, program: Program) -> np.ndarray:
        """See `Side.run`."""
        fault = self.fault(program)
        if fault is None:
            return self._side.run(program)
        slot, text = fault
        begin = program.ptx.index(f"\n{slot.text}\n")
        ptx = f"{program.ptx[:begin]}\n{text}{program.ptx[begin + 1 + len(slot.text) :]}"
        return self._side.run_text(program, ptx)

    def fault(self, program: Program) -> tuple[Slot, str] | None:
        """The changed use of a form and its text; None where nothing can be changed."""
        possible = []
        for slot in program.slots:
            opcode, _, operands = slot.text.partition(" ")
            first, *rest = opcode.split(".")
            is_plain = slot.form.is_single and slot.form.results and not slot.form.bound
            if is_plain and first in SWAPPED and not NOT_SWAPPED & set(rest):
                possible.append((slot, f"{'.'.join([SWAPPED[first], *rest])} {operands}"))
        if not possible:
            return None
        return possible[Random(f"fault {self._seed} {program.seed}").getrandbits(30) % len(possible)]


def gpu_name(device: int) -> str:
    """The name of a GPU.

    Args:
        device: its number.

    Raises:
        SideError: there is no such GPU.
    """
    driver, handle, name = _driver(), ctypes.c_int(), ctypes.create_string_buffer(256)
    _call(driver, "cuInit", ctypes.c_uint(0))
    _call(driver, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _call(driver, "cuDeviceGetName", name, ctypes.c_int(len(name)), handle)
    return name.value.decode()


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SideError(f"there is no driver: {error}") from None


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    status = getattr(driver, name)(*arguments)
    if status:
        raise SideError(f"{name} failed with error {status}")


class GpuSide:
    """A GPU, through the driver alone; programs are assembled with ptxas, many at a time.

    Args:
        programs: that will be run.
        device: number of the GPU.

    Raises:
        SideError: there is no GPU, or its driver fails.
    """

    def __init__(self, programs: Sequence[Program], device: int = 0) -> None:
        self._driver = _driver()
        assembled = assemble(programs)
        self._refused = assembled.refused
        self._call("cuInit", ctypes.c_uint(0))
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)
        self._module_of: dict[int, ctypes.c_void_p] = {}
        for binary, seeds in assembled.modules:
            module = ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(binary))
            self._module_of |= dict.fromkeys(seeds, module)
        self._memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(2 << 20))

    def run(self, program: Program) -> np.ndarray:
        """See `Side.run`; after an error of the driver the process cannot use the GPU any more.

        Raises:
            RefusedError: ptxas does not take the program.
        """
        if program.seed in self._refused:
            raise RefusedError(self._refused[program.seed])
        function = ctypes.c_void_p()
        module = self._module_of[program.seed]
        self._call("cuModuleGetFunction", ctypes.byref(function), module, program.kernel.encode())
        content = np.ascontiguousarray(program.memory)
        size = ctypes.c_size_t(content.nbytes)
        self._call("cuMemcpyHtoD_v2", self._memory, content.ctypes.data_as(ctypes.c_void_p), size)
        rank = ctypes.c_uint32(0)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(self._memory), ctypes.addressof(rank))
        shape = [ctypes.c_uint(n) for n in (program.blocks, 1, 1, program.threads, 1, 1, 0)]
        self._call("cuLaunchKernel", function, *shape, ctypes.c_void_p(), arguments, ctypes.c_void_p())
        self._call("cuCtxSynchronize")
        result = np.empty_like(content)
        self._call("cuMemcpyDtoH_v2", result.ctypes.data_as(ctypes.c_void_p), self._memory, size)
        return result

    def _call(self, name: str, *arguments: object) -> None:
        _call(self._driver, name, *arguments)


@dataclass(frozen=True)
class Assembled:
    """Machine code of programs.

    Attributes:
        modules: machine code and the seeds of its programs.
        refused: seed -> why ptxas does not take a program.
    """

    modules: tuple[tuple[bytes, tuple[int, ...]], ...]
    refused: Mapping[int, str]


def assemble(programs: Sequence[Program]) -> Assembled:
    """Machine code of one module with these programs; of several where ptxas refuses one of them."""
    binary, message = _ptxas(programs)
    if binary is not None:
        return Assembled(((binary, tuple(program.seed for program in programs)),), {})
    if len(programs) == 1:
        return Assembled((), {programs[0].seed: f"ptxas: {message[:2000]}"})
    half = len(programs) // 2
    first, second = assemble(programs[:half]), assemble(programs[half:])
    return Assembled(first.modules + second.modules, {**first.refused, **second.refused})


def _ptxas(programs: Sequence[Program]) -> tuple[bytes | None, str]:
    """Machine code of a module, or None and why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "programs.ptx", Path(folder) / "programs.cubin"
        source.write_text(HEADER + PRELUDE + "".join(program.ptx for program in programs))
        command = [str(find_toolkit() / "bin" / "ptxas"), "-arch=sm_90a", "-o", str(binary), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (None, done.stdout + done.stderr) if done.returncode else (binary.read_bytes(), "")


@contextmanager
def emulator_at(path: Path) -> Iterator[EmulatedSide]:
    """The compiled emulator in a file."""
    import tvm_ffi  # noqa: F401  # loads the library that the emulator is linked with

    yield EmulatedSide(EmulatorLibrary(path))
