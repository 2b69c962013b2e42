"""A candidate's library finds the emulator's CUDA runtime also where NVIDIA's was loaded before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rank_emulator.symbol_names import emulated_names, original_names

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

CANDIDATE = """
extern "C" int cudaMalloc(), cuInit(), __cudaRegisterVar(), cudart_of_mine(), custom();
extern "C" int cudaDefinedHere() { return 5; }
extern "C" int sum() {
  return cudaMalloc() + cuInit() + __cudaRegisterVar() + cudart_of_mine() + custom() + cudaDefinedHere();
}
"""
LOADED_LAST = """
import ctypes, sys
*before, candidate = sys.argv[1:]
for path in before:
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
print(ctypes.CDLL(candidate).sum())
"""
RUNTIME = 'extern "C" int {}() {{ return {}; }}\n'


def library(folder: Path, name: str, source: str) -> Path:
    path = folder / f"{name}.so"
    command = ["g++", "-x", "c++", "-shared", "-fPIC", "-O1", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_functions_of_the_runtime_and_driver_are_those_of_the_emulator(tmp_path: Path) -> None:
    ours = (("CUDAMalloc", 100), ("CUInit", 200), ("__CUDARegisterVar", 300), ("cudart_of_mine", 10), ("custom", 20))
    theirs = (("cudaMalloc", 1), ("cuInit", 2), ("__cudaRegisterVar", 3))
    before = [
        library(tmp_path, name, "".join(RUNTIME.format(*function) for function in functions))
        for name, functions in (("theirs", theirs), ("ours", ours))
    ]
    candidate, renamed = library(tmp_path, "candidate", CANDIDATE), tmp_path / "renamed.so"
    renamed.write_bytes(emulated_names(candidate.read_bytes()))

    def found(last: Path) -> int:
        command = [sys.executable, "-c", LOADED_LAST, *map(str, before), str(last)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)

    assert found(candidate) == 1 + 2 + 3 + 10 + 20 + 5, "those that were loaded first"
    assert found(renamed) == 100 + 200 + 300 + 10 + 20 + 5


def test_a_function_that_is_lacking_has_its_name_in_the_source() -> None:
    assert original_names("a.so: undefined symbol: CUDAGraphCreate") == "a.so: undefined symbol: cudaGraphCreate"
    assert original_names("a.so: undefined symbol: __CUDAFoo") == "a.so: undefined symbol: __cudaFoo"
    assert original_names("a.so: undefined symbol: CUInit") == "a.so: undefined symbol: cuInit"
    assert original_names("CUDA error 700") == "CUDA error 700"
