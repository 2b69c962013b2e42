"""Kernels of several problems in one translation unit, of which a number in the library's data chooses one.

Compilers spend most of their time on headers. Two such sources differ in the digits of that number alone, and so do
their libraries: one compile serves all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import compile_emulated
from pkb_gym.engine.records.artifact import Artifact
from tests.engine.emulator.joined import INCLUDE, in_namespace

TIMEOUT_S = 600.0
CHOICE = "kernel number {:03d}"
DISPATCH = """
extern "C" const volatile char chosen[] = "{choice}";

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_solution(void* self, const TVMFFIAny* args, int32_t count,
                                                     TVMFFIAny* result) {{
  switch ((chosen[14] - '0') * 100 + (chosen[15] - '0') * 10 + chosen[16] - '0') {{
{cases}
    default: return -1;
  }}
}}
"""


@dataclass(frozen=True)
class Kernel:
    """A source and what it solves."""

    name: str
    problem: str
    source: str


def joined(kernels: Sequence[Kernel], number: int) -> str:
    """One translation unit that solves the problem of one of its kernels, numbered from 0.

    Before each kernel stand its own includes. Messages name lines of its own source.
    """
    parts = []
    for at, kernel in enumerate(kernels):
        parts += INCLUDE.findall(kernel.source)
        parts += in_namespace(f"kernel_{at}", f"{kernel.name.replace(' ', '_')}.cu", kernel.source)
        parts.append(f'#line {at + 1} "joined.cu"')
        parts.append(f"TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution_{at}, kernel_{at}::solution);")
    call = "    case {0}: return __tvm_ffi_solution_{0}(self, args, count, result);"
    cases = "\n".join(call.format(at) for at in range(len(kernels)))
    return "\n".join(parts) + DISPATCH.format(choice=CHOICE.format(number), cases=cases)


def compile_together(kernels: Sequence[Kernel], cache: CompileCache) -> None:
    """Has the cache answer for the joined source of every number."""
    artifact = compile_emulated(joined(kernels, 0), cache, TIMEOUT_S)
    assert artifact.binary is not None, artifact.log
    first = CHOICE.format(0).encode()
    assert artifact.binary.count(first) == 1
    for number in range(1, len(kernels)):
        binary = artifact.binary.replace(first, CHOICE.format(number).encode())
        compile_emulated(joined(kernels, number), _Answering(cache.folder, replace(artifact, binary=binary)), TIMEOUT_S)


class _Answering(CompileCache):
    """Keeps one artifact under every key that it is asked for."""

    def __init__(self, folder: Path, artifact: Artifact) -> None:
        super().__init__(folder)
        self._artifact = artifact

    def get(self, key: str) -> Artifact:
        self.put(key, self._artifact)
        return self._artifact
