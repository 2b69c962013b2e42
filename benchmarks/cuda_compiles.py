"""Processor time of compiling CUDA sources, with the FFI's own headers and with the light ones in their place.

python -m benchmarks.cuda_compiles

Needs nvcc, and no GPU. Each source is compiled as the evaluator compiles it, with both kinds of headers in turn.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import make_parser, save
from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.library_headers import STANDARD
from pkb_gym.engine.compile.toolchain import include_arguments, library_arguments
from pkb_gym.problems.catalogue import expert_source, find_problem

ROUNDS = 3
EXPERTS = ("AllReduce", "AllGatherGemm")
PLAIN = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>

__global__ void adds_one(float* x) { x[threadIdx.x] += 1; }
void launch(float* x) { adds_one<<<1, 32>>>(x); }
"""
"""A kernel without the dialect: the time that no header of ours takes off."""

EMPTY = """
#include "pkb/symm.h"

__global__ void adds_one(float* x) { x[threadIdx.x] += 1; }

void solution(tvm::ffi::TensorView x, tvm::ffi::TensorView out, pkb::Comm comm) {
  if (x.numel() != out.numel()) TVM_FFI_THROW(ValueError) << "expected " << x.numel() << " elements";
  adds_one<<<1, 32, 0, comm.cuda_stream()>>>(static_cast<float*>(x.data_ptr()));
  PKB_CUDA_LAUNCHED();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
"""The least kernel of the dialect."""


def main() -> None:
    """Measures and keeps the result."""
    parser = make_parser("cuda_compiles", __doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of each compile (default: {ROUNDS})")
    rounds: int = parser.parse_args().rounds
    sources = {"plain kernel": PLAIN, "least kernel of the dialect": EMPTY}
    sources |= {f"expert of {name}": _expert(name) for name in EXPERTS}
    rows = []
    for name, source in sources.items():
        seconds: dict[str, list[float]] = {"ffi": [], "light": []}
        for _ in range(rounds):
            seconds["ffi"].append(compile_s(source))
            seconds["light"].append(compile_s(source, nvcc.LIGHT))
        medians = {f"{kind}_cpu_s": round(statistics.median(times), 2) for kind, times in seconds.items()}
        rows.append({"source": name, **medians, "rounds": rounds})
    result = {"nvcc": nvcc.nvcc_version(), "load_average": os.getloadavg()[0], "rows": rows}
    save("cuda_compiles", result)


def compile_s(source: str, *definitions: str) -> float:
    """Processor seconds of one compile.

    Args:
        source: CUDA source of one translation unit.
        definitions: Options besides those of candidates.

    Raises:
        subprocess.CalledProcessError: it does not compile.
    """
    architecture = nvcc.default_architecture()
    flags = (STANDARD, nvcc.gencode(architecture), *nvcc.FLAGS, *definitions)
    with tempfile.TemporaryDirectory(prefix="pkb-") as folder:
        Path(folder, "kernel.cu").write_text(source, encoding="utf-8")
        command = [
            str(nvcc.find_toolkit() / "bin" / "nvcc"),
            *flags,
            *include_arguments(),
            "kernel.cu",
            "-o",
            "kernel.so",
        ]
        return _cpu_s([*command, *library_arguments()], folder)


def _cpu_s(command: Sequence[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _expert(name: str) -> str:
    source = expert_source(find_problem(name), "cu")
    assert source is not None
    return source


if __name__ == "__main__":
    main()
