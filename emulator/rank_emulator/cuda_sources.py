"""CUDA sources for emulated GPUs: the options of nvcc, and a compile of one source."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import EmulatorError
from .symbol_names import emulated_names

ARCHITECTURE = "sm_90a"

VIRTUAL = ARCHITECTURE.replace("sm_", "compute_")
WITH_MACHINE_CODE = f"-gencode=arch={VIRTUAL},code=[{ARCHITECTURE},{VIRTUAL}]"
PTX_ALONE = f"-gencode=arch={VIRTUAL},code={VIRTUAL}"

OBJECT_FLAGS = (
    # The emulator runs the PTX; the machine code gives the registers, which decide how many blocks are resident.
    WITH_MACHINE_CODE,
    "--no-compress",
    "-lineinfo",
    "-Xcompiler=-fno-gnu-unique",  # each rank has its own copy of every variable
)
"""Options that an object for emulated GPUs needs; one for the same GPU may have them, too."""

LINK_FLAGS = (
    "-cudart=none",  # the emulator has a runtime of its own, which is there before the library is loaded
    "-Xlinker=-z,now",  # loading the library names the first symbol that the runtime lacks
)
"""Options that a library for emulated GPUs needs, of such objects."""

FLAGS = (
    *OBJECT_FLAGS,
    *LINK_FLAGS,
    "-O1",  # of the host's code alone, whose time nobody measures; GPU code is optimised at any level
)
"""Options that a source for emulated GPUs needs."""

LIBRARY_FLAGS = ("-std=c++17", "-shared", "-Xcompiler=-fPIC")


class CompileError(EmulatorError):
    """nvcc refuses a source; the text is its output."""


def compile_cuda(source: str, flags: Sequence[str] = (), *, machine_code: bool = True) -> bytes:
    """Compiles a CUDA source into a library for emulated GPUs.

    Args:
        source: One translation unit. What it exports as `extern "C"` can be called once the library is loaded.
        flags: Further options of nvcc, such as "-I" with a folder of headers.
        machine_code: Whether ptxas reads the PTX, too, and finds mistakes in `asm`. Emulated GPUs run none of its code,
            which takes up to a third of the compile.

    Returns:
        The shared library, which `World.load` takes.

    Raises:
        CompileError: nvcc refuses the source.
        EmulatorError: There is no CUDA toolkit.
    """
    nvcc = str(find_toolkit() / "bin" / "nvcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        own = FLAGS if machine_code else [PTX_ALONE if flag == WITH_MACHINE_CODE else flag for flag in FLAGS]
        line = [nvcc, *own, *LIBRARY_FLAGS, *flags, "kernel.cu", "-o", "kernel.so"]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise CompileError((done.stdout + done.stderr).strip())
        return emulated_names((folder / "kernel.so").read_bytes())


def find_toolkit() -> Path:
    """The folder of the CUDA toolkit: CUDA_HOME, that of nvcc on the path, or /usr/local/cuda.

    Raises:
        EmulatorError: None of them holds nvcc and its headers.
    """
    nvcc = shutil.which("nvcc")
    places = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places += [Path(nvcc).resolve().parent.parent] if nvcc else []
    for place in (*places, Path("/usr/local/cuda")):
        if (place / "bin" / "nvcc").is_file() and (place / "include" / "cuda_runtime.h").is_file():
            return place
    raise EmulatorError("no CUDA toolkit on this machine; install it, or set CUDA_HOME to its folder")
