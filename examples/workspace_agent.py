"""A coding agent without a model: it edits, compiles, is told of a race, repairs it, and submits.

    pkb run --agent "workspace:python3 examples/workspace_agent.py {solution}" --problems AllReduce --until check

It runs on any Python, in the sandbox of a workspace, and knows of the evaluator what `./evaluate` prints. With
`--device emulated` it writes CUDA. A model would stand where `repaired` is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CPP = """\
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr())
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();  // by now peers have read this rank's argument
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""

CUDA = """\
#include <cuda_bf16.h>

#include "pkb/symm.h"

__global__ void add_up(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t n, const __grid_constant__ pkb::Device comm) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += __bfloat162float(comm.peer(x, r)[i]);
    y[i] = __float2bfloat16(sum);
  }
  comm.barrier_blocks(1);  // by now peers have read this rank's argument
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* x = static_cast<const __nv_bfloat16*>(tensor.data_ptr());
  auto* y = static_cast<__nv_bfloat16*>(out.data_ptr())
  add_up<<<8, 256, 0, comm.cuda_stream()>>>(x, y, tensor.numel(), comm.device());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""

ARRIVAL = "  // peers' arguments are there: their calls have begun\n"


def run(program: str, *arguments: str) -> tuple[int, str]:
    """Runs a program of the workspace; returns its exit status and what it prints."""
    ran = subprocess.run([f"./{program}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"$ ./{program} {' '.join(arguments)}\n{ran.stdout}", flush=True)
    return ran.returncode, ran.stdout


def repaired(source: str, feedback: str) -> str:
    """The source without the mistake that the feedback names."""
    if "expected" in feedback and "data_ptr())\n" in source:
        return source.replace("data_ptr())\n", "data_ptr());\n")
    if "race" in feedback:
        if "__global__" in source:
            return source.replace("Device comm) {\n", f"Device comm) {{\n  comm.barrier_blocks(0);{ARRIVAL}")
        return source.replace("Comm comm) {\n", f"Comm comm) {{\n  comm.barrier();{ARRIVAL}")
    raise SystemExit(f"nothing is known about this feedback:\n{feedback}")


def main(solution: Path) -> int:
    """Works until the kernel is right; returns the exit status."""
    if "all_reduce" not in Path("reference.py").read_text():
        print("this agent knows AllReduce alone")
        return 1
    source = CUDA if solution.suffix == ".cu" else CPP
    stages = ["compile", "check"]
    while stages:
        solution.write_text(source)
        status, feedback = run("evaluate", solution.name, "--until", stages[0])
        if status > 1:
            return status
        if status == 0:
            del stages[0]
        else:
            source = repaired(source, feedback)
    print('{"usage": {"input_tokens": 0, "output_tokens": 0}}')  # an agent with a model says what it has used so far
    return run("submit", solution.name)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solution", type=Path, help="file to write: .cu for CUDA, .cpp for C++")
    sys.exit(main(parser.parse_args().solution))
