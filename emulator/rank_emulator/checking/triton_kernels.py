"""Triton kernels of several ranks: compiled to PTX for sm_90 without a GPU, and launched on each rank.

A Triton program launches kernels with declared buffers in place of tensors. The functions around the kernels, which
need tensors on a GPU, do not run: `torch.distributed._symmetric_memory` gives kernels the arrays of pointers that
`NAME_table` stands for here, and its signal pads are buffers of u32 that hold zeros at first.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from rank_emulator.errors import EmulatorError
from rank_emulator.world import Shape, World

from .buffers import Buffer, UsageError


@dataclass(frozen=True)
class Place:
    """Where a launch takes place.

    Attributes:
        rank: Rank that launches.
        world_size: Number of ranks.
        call: Number of the call, from 0.
    """

    rank: int
    world_size: int
    call: int


Argument: TypeAlias = "str | int | float | Callable[[Place], int]"
"""The name of a buffer (the rank's own pointer), NAME_table (the address of an array of all ranks' pointers, an i64), a
number, or a function of the place that gives a whole number."""

_TYPES = {"bf16": "*bf16", "f16": "*fp16", "f32": "*fp32", "f64": "*fp64"}
_WARP = 32


@dataclass(frozen=True)
class TritonLaunch:
    """The launch of a kernel in each call.

    Attributes:
        kernel: Function with the decorator `triton.jit`.
        arguments: Value of each parameter that is no `tl.constexpr`, by name.
        constants: Value of each parameter that is a `tl.constexpr`, by name. `world_size` is filled in where the kernel
            has a constant of that name and none is given.
        grid: Programs in each dimension.
        num_warps: Warps of a program, a power of two.
    """

    kernel: Any  # triton.JITFunction; Triton may be missing
    arguments: Mapping[str, Argument]
    constants: Mapping[str, Any] = field(default_factory=dict)
    grid: Shape = (1, 1, 1)
    num_warps: int = 4


@dataclass(frozen=True)
class TritonModule:
    """A compiled kernel.

    Attributes:
        ptx: Text of the module.
        name: Name of the kernel.
        shared_bytes: Dynamic shared memory of a program in bytes.
        scratch: Number of further pointers behind the arguments, which are null.
        arguments: Type in Triton's words and value of each parameter, in the order of the kernel's.
        grid: Programs in each dimension.
        num_warps: Warps of a program.
    """

    ptx: str
    name: str
    shared_bytes: int
    scratch: int
    arguments: tuple[tuple[str, Argument], ...]
    grid: Shape
    num_warps: int


class Pointers(Protocol):
    """Addresses of a rank's buffers."""

    def own(self, name: str) -> int:
        """The address of the rank's own buffer."""

    def table(self, name: str) -> int:
        """The address of the array of all ranks' pointers."""


@dataclass(frozen=True)
class TritonProgram:
    """Kernels that each rank launches in a call, one after the other.

    Attributes:
        launches: Launches, in their order.
        buffers: Symmetric buffers.
    """

    launches: tuple[TritonLaunch, ...]
    buffers: tuple[Buffer, ...] = ()

    @property
    def has_main(self) -> bool:
        """Whether each rank runs `main`: never."""
        return False

    def of_ranks(self, world_size: int) -> TritonProgram:
        """The program for a number of ranks, by which the shapes of its buffers are known."""
        return replace(self, buffers=tuple(buffer.of_ranks(world_size) for buffer in self.buffers))

    def compile(self, world_size: int) -> tuple[TritonModule, ...]:
        """Compiles the kernels for ranks of emulated GPUs.

        Raises:
            UsageError: An argument is missing or of an unknown name.
            EmulatorError: Triton is missing, or refuses a kernel.
        """
        modules = (self._compile(launch, world_size) for launch in self.launches)
        return tuple(_renamed(module, f"{module.name}_{index}") for index, module in enumerate(modules))

    def _compile(self, launch: TritonLaunch, world_size: int) -> TritonModule:
        try:
            import triton
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource
        except ImportError:
            raise EmulatorError("Triton is not installed; pip install triton (it needs no GPU to compile)") from None
        constants = dict(launch.constants)
        names = list(inspect.signature(launch.kernel.fn).parameters)
        if "world_size" in names and "world_size" not in {*constants, *launch.arguments}:
            constants["world_size"] = world_size
        missing = [name for name in names if name not in launch.arguments and name not in constants]
        unknown = [name for name in (*launch.arguments, *constants) if name not in names]
        if missing or unknown:
            raise UsageError(
                f"{launch.kernel.__name__} has the parameters {', '.join(names)}; "
                f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}"
            )
        arguments = tuple(
            (self._type_of(name, launch.arguments[name], world_size), launch.arguments[name])
            for name in names
            if name in launch.arguments
        )
        types = iter(arguments)
        signature = {name: "constexpr" if name in constants else next(types)[0] for name in names}
        source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants)
        try:
            compiled = triton.compile(
                source, target=GPUTarget("cuda", 90, _WARP), options={"num_warps": launch.num_warps}
            )
        except Exception as error:
            raise EmulatorError(f"Triton refuses {launch.kernel.__name__}: {error}") from error
        ptx = str(compiled.asm["ptx"])
        name = str(compiled.metadata.name)
        return TritonModule(
            ptx=ptx,
            name=name,
            shared_bytes=int(compiled.metadata.shared),
            scratch=_parameters(ptx, name) - len(arguments),
            arguments=arguments,
            grid=launch.grid,
            num_warps=launch.num_warps,
        )

    def _type_of(self, name: str, argument: Argument, world_size: int) -> str:
        """The type of a parameter in Triton's words."""
        if isinstance(argument, str):
            for buffer in self.buffers:
                if argument == buffer.name:
                    return _TYPES.get(buffer.type.name, f"*{buffer.type.name}")
                if argument == f"{buffer.name}_table":
                    return "i64"
            known = ", ".join(buffer.name for buffer in self.buffers)
            raise UsageError(f"argument {name}: no buffer {argument!r}; the buffers are {known}")
        if isinstance(argument, float):
            return "fp32"
        value = argument if isinstance(argument, int) else argument(Place(0, world_size, 0))
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"


def launch_modules(world: World, modules: tuple[TritonModule, ...], pointers: Pointers, place: Place) -> None:
    """Launches the kernels of a call on the rank whose thread this is; their PTX has been loaded.

    Raises:
        EmulatorError: A kernel cannot be launched.
    """
    for module in modules:
        values = [_value(kind, argument, pointers, place) for kind, argument in module.arguments]
        values += [ctypes.c_uint64(0)] * module.scratch
        world.launch(
            module.name,
            values,
            grid=module.grid,
            block=(_WARP * module.num_warps, 1, 1),
            dynamic_shared_bytes=module.shared_bytes,
        )


def _value(kind: str, argument: Argument, pointers: Pointers, place: Place) -> ctypes._SimpleCData[Any]:
    if isinstance(argument, str):
        is_table = kind == "i64"
        return ctypes.c_uint64(pointers.table(argument.removesuffix("_table")) if is_table else pointers.own(argument))
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    value = argument if isinstance(argument, int) else argument(place)
    return ctypes.c_int32(value) if kind == "i32" else ctypes.c_int64(value)


def _renamed(module: TritonModule, name: str) -> TritonModule:
    """The module with another name of its kernel, since launches of one kernel differ in their constants."""
    return replace(module, name=name, ptx=re.sub(rf"(?<=\.entry ){re.escape(module.name)}\b", name, module.ptx))


def _parameters(ptx: str, name: str) -> int:
    """Number of a kernel's parameters in its PTX."""
    begin = ptx.index(f".entry {name}(")
    return ptx[begin : ptx.index(")", begin)].count(".param")
