"""Compiles what many tests are going to evaluate, side by side; and reads sources that only have to compile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pkb_gym.engine.compile import gxx, nvcc, toolchain
from pkb_gym.engine.compile.opened_files import GXX_FLAGS
from pkb_gym.engine.compile.precompiled import PREFIX, begins_with_header, precompiled_header
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig


def compile_ahead(
    evaluator: LocalEvaluator, work: Iterable[tuple[Problem, str, EvalConfig]], *, threads: int = 2
) -> None:
    """Compiles sources, each as its evaluation would; the tests find them in the evaluator's cache."""

    def compile_one(each: tuple[Problem, str, EvalConfig]) -> None:
        problem, source, config = each
        evaluator.evaluate(problem, source, config.model_copy(update={"until": "compile"}))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(compile_one, work))


HARDLY_OPTIMISED = ("--cubin", "-Xcicc", "-O1", "-Xptxas", "-O0")
"""Reads all code and generates that of the GPU, in a third of the time; tests/gpu compiles as evaluations do.

-O0 of cicc is no quicker, and leaves ptxas so much code that it takes four times as long for large kernels."""


def cuda_errors(source: Path, folder: Path) -> str:
    """What nvcc says against a source that it does not take; empty where it does.

    Args:
        source: Source of the kernel, for sm_90a.
        folder: Folder for the machine code.
    """
    flags = (nvcc.gencode("sm_90a"), "-std=c++17", *HARDLY_OPTIMISED, *toolchain.include_arguments())
    command = [str(nvcc.find_toolkit() / "bin" / "nvcc"), *flags, str(source), "-o", str(folder / "kernel.cubin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stderr or f"nvcc ended with status {ran.returncode}"


def cpp_errors(source: str) -> str:
    """What g++ says against a source by itself; empty where it takes it. No code is made."""
    header = precompiled_header(gxx.COMPILER_FLAGS) if begins_with_header(source) else None
    prefix = () if header is None else ("-include", str(header / PREFIX))
    flags = [flag for flag in gxx.COMPILER_FLAGS if flag not in GXX_FLAGS]
    command = ["g++", *flags, "-fsyntax-only", *toolchain.include_arguments(), *prefix, "-x", "c++", "-"]
    ran = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stderr or f"g++ ended with status {ran.returncode}"
