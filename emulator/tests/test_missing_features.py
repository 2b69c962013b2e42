"""What the emulator lacks is named, with the line of the source or an error code."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from emulator.tests.libraries import Library
from emulator.tests.test_function_pointers import fine
from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome, World, compile_cuda
from rank_emulator.cuda_sources import find_toolkit

LOCATED = '.file 1 "kernel.cu"\n'


@pytest.mark.parametrize(
    "instruction",
    [
        "tex.3d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd2, {%f5, %f6, %f7, %f7}];",
        "tex.base.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd2, {%r5}];",
        "suld.b.2d.b32.trap {%r4}, [%rd2, {%r5, %r6}];",
        "sust.b.1d.b32.zero [%rd2, {%r5}], {%r6};",
        "txq.width.b32 %r4, [%rd2];",
        "alloca.u64 %rd4, %rd3, 8;",
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f16.e4m3x4 %r4, [%rd0];",
        "frobnicate.sync.u32 %r4, %r5;",
    ],
)
def test_an_instruction_is_named_first_with_its_line(emulator: EmulatorLibrary, instruction: str) -> None:
    ended = emulator.run(entry(f".loc 1 23 5\n{instruction}", before=LOCATED))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION
    opcode = instruction.split()[0]
    assert f"unknown instruction {opcode} at kernel.cu:23" in ended.message.splitlines()[0]


def test_a_launch_by_a_kernel_is_named(emulator: EmulatorLibrary) -> None:
    declared = ".extern .func (.param .b32 r) cudaGraphLaunch (.param .b64 a, .param .b64 b);\n"
    call = "{\n.param .b32 r;\n.param .b64 a;\n.param .b64 b;\ncall.uni (r), cudaGraphLaunch, (a, b);\n}"
    ended = emulator.run(entry(call, before=declared))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION
    assert "'cudaGraphLaunch': calls of the CUDA runtime by kernels, such as launches, are not" in ended.message


def test_an_instruction_that_no_kernel_reaches_is_none(emulator: EmulatorLibrary) -> None:
    unreached = ".func unreached() {\nfrobnicate.u32 %r1;\n}\n".replace("%r1", "0")
    assert emulator.run(entry("", before=unreached)).outcome == Outcome.OK


SOURCE = r"""
#include <cuda.h>
extern "C" int entry_points(int* out, int*, int, cudaStream_t) {
  void* entry = out;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSuccess;
  const int error = cudaGetDriverEntryPointByVersion("cuFrobnicate", &entry, 12000, cudaEnableDefault, &status);
  const int found[] = {entry == nullptr, error, status == cudaDriverEntryPointSymbolNotFound};
  return cudaMemcpy(out, found, sizeof found, cudaMemcpyHostToDevice);
}
"""


def test_an_entry_point_of_the_driver_is_null_with_a_code(emulator_path: Path | None) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    assert fine(Library(emulator_path, SOURCE).call("entry_points"), 3).tolist() == [1, 0, 1]


SURFACE = """
extern "C" int make(cudaSurfaceObject_t* made) { return cudaCreateSurfaceObject(made, nullptr); }
"""


def test_a_function_of_the_runtime_is_named_when_it_is_called(emulator_path: Path | None) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    content = compile_cuda(SURFACE)
    for is_called in (True, False):
        with World(emulator_path, 1) as world:

            def body(_: int, called: bool = is_called, world: World = world) -> None:
                library = world.load(content)
                if called:
                    library.make(ctypes.byref(ctypes.c_uint64()))

            ended = world.run(body)
        assert ended.outcome is (Outcome.BODY_FAILED if is_called else Outcome.OK)
        assert ("cudaCreateSurfaceObject is not modelled" in ended.message) is is_called


def test_every_function_of_the_toolkit_is_there_or_named(emulator_path: Path | None, tmp_path: Path) -> None:
    """Programs are loaded as a whole: a function that they name in a part that no run comes to must not hinder it."""
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    headers = "#include <cuda.h>\n#include <cuda_runtime_api.h>\n"
    line = ["g++", "-E", "-x", "c++", f"-I{find_toolkit() / 'include'}", "-"]
    text = subprocess.run(line, input=headers, capture_output=True, text=True, check=True).stdout
    declared = set(re.findall(r"\b(?:cudaError_t|CUresult)\s+(cu(?:da)?[A-Z]\w*)\s*\(", text))
    exported = subprocess.run(["nm", "-D", "--defined-only", emulator_path], capture_output=True, text=True, check=True)
    there = {name.partition("@")[0] for name in exported.stdout.split()}
    emulated = {re.sub("^cu(da)?(?=[A-Z])", lambda found: found[0].upper(), name) for name in declared}
    assert len(declared) > 700 and emulated - there == set()
