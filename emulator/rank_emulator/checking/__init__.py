"""Checks of programs of several ranks: races, deadlocks, bad accesses and wrong outputs, without a GPU.

`check` compiles a `Program` for each number of ranks and runs it under many schedules. The command `check-ranks`
and the pytest fixture `ranks` are made of it.
"""

from .buffers import Buffer, ElementType, Role, UsageError, parse_buffers
from .checks import Place, Problem, Report, check, default_cache
from .programs import Program, compile_program, default_call
from .reference import Reference, Tolerance, load_reference
from .reports import as_json, as_sarif, as_text
from .runs import Built, Options, Run, build_program, run_program
from .triton_kernels import TritonLaunch, TritonProgram

__all__ = [
    "Buffer",
    "Built",
    "ElementType",
    "Options",
    "Place",
    "Problem",
    "Program",
    "Reference",
    "Report",
    "Role",
    "Run",
    "Tolerance",
    "TritonLaunch",
    "TritonProgram",
    "UsageError",
    "as_json",
    "as_sarif",
    "as_text",
    "build_program",
    "check",
    "compile_program",
    "default_cache",
    "default_call",
    "load_reference",
    "parse_buffers",
    "run_program",
]
