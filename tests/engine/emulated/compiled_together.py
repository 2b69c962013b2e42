"""Kernels of several problems in one translation unit, of which a number in the library's data chooses one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import candidate_flags, compile_emulated
from pkb_gym.engine.records.artifact import Artifact
from rank_emulator.cuda_sources import ARCHITECTURE
from tests.engine.emulated.joined import in_namespace
from tests.engine.joined_libraries import INCLUDE, TIMEOUT_S, Answering, chosen, dispatch

OPTIMISED = tuple("-O0" if flag == "-O1" else flag for flag in candidate_flags())
"""Options of candidates, but for the host's code, for which g++ takes a third less time."""
QUICK_FLAGS = OPTIMISED if os.environ.get("PKB_TEST_EMULATED") else (*OPTIMISED, "-Xcicc=-O1", "-Xptxas=-O0")
"""Those, with code for GPUs that is optimised less, in two thirds of the time; `make emulated` does it as for users."""


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
    return "\n".join(parts) + dispatch(len(kernels), number)


def compile_of_many(source: str, cache: CompileCache, flags: Sequence[str] = QUICK_FLAGS) -> Artifact:
    """Has the cache answer for a source of many kernels. Their instructions are not counted: those of all are no one's.

    Args:
        source: Source that evaluations will ask for.
        cache: Cache of the evaluator.
        flags: Options of nvcc.
    """
    with mock.patch.object(nvcc, "count_instructions", return_value=None):
        artifact = nvcc.compile_cuda(source, cache, TIMEOUT_S, ARCHITECTURE, flags, emulated=True)
    return compile_emulated(source, Answering(cache.folder, artifact), TIMEOUT_S)


def compile_together(kernels: Sequence[Kernel], cache: CompileCache) -> None:
    """Has the cache answer for the joined source of every number."""
    artifact = compile_of_many(joined(kernels, 0), cache)
    for number in range(1, len(kernels)):
        compile_emulated(joined(kernels, number), Answering(cache.folder, chosen(artifact, number)), TIMEOUT_S)
