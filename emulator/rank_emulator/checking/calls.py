"""The calls of one rank: of a compiled library, or of Triton kernels."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

from rank_emulator.errors import EmulatorError
from rank_emulator.symbol_names import original_names
from rank_emulator.world import World

from .triton_kernels import Place, TritonModule, launch_modules


@dataclass(frozen=True)
class Pointers:
    """Addresses of the declared buffers, as one rank sees them.

    Attributes:
        rank: Rank that sees them.
        world_size: Number of ranks.
        names: Names of the buffers.
        of_ranks: Address of each buffer on each rank.
        tables: Address of each buffer's table of pointers in memory of the rank's GPU.
        multicast: Address of each buffer that stands for that of all ranks.
    """

    rank: int
    world_size: int
    names: tuple[str, ...]
    of_ranks: tuple[tuple[int, ...], ...]
    tables: tuple[int, ...]
    multicast: tuple[int, ...]

    def own(self, name: str) -> int:
        """The address of the rank's own buffer."""
        return self.of_ranks[self.names.index(name)][self.rank]

    def table(self, name: str) -> int:
        """The address of the array of all ranks' pointers."""
        return self.tables[self.names.index(name)]


class _Arguments(ctypes.Structure):
    """check_ranks::Arguments of the compiled call."""

    _fields_ = [
        ("own", ctypes.POINTER(ctypes.c_void_p)),
        ("ranks", ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))),
        ("tables", ctypes.POINTER(ctypes.c_void_p)),
        ("multicast", ctypes.POINTER(ctypes.c_void_p)),
        ("rank", ctypes.c_int),
        ("call", ctypes.c_int),
        ("stream", ctypes.c_void_p),
    ]


class LibraryCalls:
    """Calls of a library that `compile_program` made, on the thread of the rank.

    Args:
        world: World of the ranks.
        library: The library.
        pointers: Addresses of the buffers.
        has_setup: Whether there is an expression for the setup.
    """

    def __init__(self, world: World, library: bytes, pointers: Pointers, *, has_setup: bool) -> None:
        self._world, self._rank, self._has_setup = world, pointers.rank, has_setup
        self._library = load_library(world, pointers.rank, library)
        count = max(len(pointers.names), 1)
        several = ctypes.c_void_p * count
        everywhere = [(ctypes.c_void_p * pointers.world_size)(*addresses) for addresses in pointers.of_ranks]
        of_ranks = (ctypes.POINTER(ctypes.c_void_p) * count)(
            *(ctypes.cast(each, ctypes.POINTER(ctypes.c_void_p)) for each in everywhere)
        )
        own = several(*(addresses[pointers.rank] for addresses in pointers.of_ranks))
        self._kept = everywhere
        tables, multicast = several(*pointers.tables), several(*pointers.multicast)
        self._arguments = _Arguments(own, of_ranks, tables, multicast, pointers.rank, 0, world.stream())

    def set_up(self) -> None:
        """Evaluates the setup and waits for its work.

        Raises:
            EmulatorError: It has failed.
        """
        if self._has_setup:
            self._evaluate("setup", f"setup of rank {self._rank}")
            self._world.synchronize()

    def call(self, number: int) -> None:
        """Evaluates a call.

        Raises:
            EmulatorError: It has failed.
        """
        self._arguments.call = number
        self._evaluate("call", f"call {number} of rank {self._rank}")

    def _evaluate(self, name: str, what: str) -> None:
        function = ctypes.cast(self._library[f"check_ranks_{name}"], ctypes.c_void_p)
        status = self._world.call_process(function.value or 0, ctypes.addressof(self._arguments))
        if status:
            raise EmulatorError(f"{what} returned {status}")
        error = self._world.last_cuda_error()
        if error is not None:
            raise EmulatorError(f"{what}: {error}")


class TritonCalls:
    """Launches of Triton kernels, on the thread of the rank.

    Args:
        world: World of the ranks.
        modules: Compiled kernels.
        pointers: Addresses of the buffers.
    """

    def __init__(self, world: World, modules: tuple[TritonModule, ...], pointers: Pointers) -> None:
        self._world, self._modules, self._pointers = world, modules, pointers
        for ptx in dict.fromkeys(module.ptx for module in modules):
            world.load_ptx(ptx)

    def set_up(self) -> None:
        """Nothing: kernels have no setup."""

    def call(self, number: int) -> None:
        """Launches the kernels of a call.

        Raises:
            EmulatorError: A kernel cannot be launched.
        """
        place = Place(self._pointers.rank, self._pointers.world_size, number)
        launch_modules(self._world, self._modules, self._pointers, place)


def load_library(world: World, rank: int, library: bytes) -> ctypes.CDLL:
    """Loads a library on the rank whose thread this is.

    Raises:
        EmulatorError: It cannot be loaded; the message names the function that is missing as the source does.
    """
    try:
        return world.load(library)
    except EmulatorError as error:
        text = re.sub(r"^/\S+\.so: ", "", original_names(str(error)))  # a copy of this run: else no two runs end alike
        raise EmulatorError(f"rank {rank}: the program cannot be loaded: {text}") from None
