"""CUDA programs of several ranks on a machine without a GPU, and the detector of their races.

`build` compiles the emulator, `compile_cuda` a CUDA source for it; a `World` loads the result on each rank, runs a
function of the host on each under a `Schedule`, and gives the outcome and the findings of the detector. `batch` does so
for many small programs of one source.

The package needs apache-tvm-ffi, pyelftools, g++, and nvcc with the headers of the CUDA toolkit.
"""

from .batches import Entry, Result, batch
from .building import build
from .cuda_sources import CompileError, compile_cuda
from .errors import EmulatorError
from .findings import Access, Finding, Findings, LinkBytes
from .interface import Outcome, RegionKind
from .schedules import POLICIES, Policy, Schedule, schedules
from .world import Ended, World, is_device_address

__all__ = [
    "POLICIES",
    "Access",
    "CompileError",
    "EmulatorError",
    "Ended",
    "Entry",
    "Finding",
    "Findings",
    "LinkBytes",
    "Outcome",
    "Policy",
    "RegionKind",
    "Result",
    "Schedule",
    "World",
    "batch",
    "build",
    "compile_cuda",
    "is_device_address",
    "schedules",
]
