"""The one rank of a build gang: imports a Python source once, and hands over the C++ extensions that it built."""

from __future__ import annotations

import os
import sys
import time

from pkb_gym.engine.wire.build_orders import MAX_EXTENSIONS, Build, Built, CudaTools
from pkb_gym.engine.wire.frames import Wire

from .extensions import Recorder, build_what_functions_build, may_build
from .failures import trace_of
from .launcher import launcher_variables
from .python import execute, new_module

MAX_EXTENSIONS_BYTES = 48 << 20

NEEDS_A_GPU = (
    "No CUDA GPUs are available",
    "no NVIDIA driver on your system",
    "no CUDA-capable device is detected",
    "0 active drivers",
)
"""Texts of errors that an import meets here and not in the ranks: by torch, the CUDA runtime, Triton."""


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one build."""
    order, source = wire.receive(Build)
    began = time.monotonic()
    libraries: dict[str, bytes] = {}
    try:
        _set_up(rank, world_size, order.tools)
        ok, log, libraries = _build(source.decode())
    except BaseException as error:  # SystemExit included: whatever a module raises when imported is data
        ok, log = False, trace_of(error)[-8000:]
    sizes = {key: len(library) for key, library in libraries.items()}
    wire.send(Built(ok, log, sizes, time.monotonic() - began), raw=b"".join(libraries.values()))


def _set_up(rank: int, world_size: int, tools: CudaTools | None) -> None:
    """Makes the surroundings that modules expect when they are imported: compilers, and a process group."""
    import torch
    import torch.distributed as dist

    folder = os.path.join(os.getcwd(), "extensions")
    os.makedirs(folder, exist_ok=True)
    os.environ |= launcher_variables(rank, world_size)
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))  # ninja
    dist.init_process_group("gloo", init_method=f"file://{folder}.ranks", rank=rank, world_size=world_size)
    if torch.version.cuda is None or tools is None:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # another candidate may be timed meanwhile
    os.environ["CUDA_HOME"] = tools.cuda_home
    os.environ["TORCH_CUDA_ARCH_LIST"] = tools.architectures
    # Queries of sources before they build. Everything else on the GPU fails; see `NEEDS_A_GPU`.
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda device: None
    torch.cuda.get_device_capability = lambda device=None: tools.compute_capability


def _build(source: str) -> tuple[bool, str, dict[str, bytes]]:
    """Imports a source; whether it can be used, the log, and the libraries by key."""
    recorder = Recorder()
    if may_build(source):
        recorder.install()
    module = new_module()
    notes = []
    try:
        execute(source, module)
        if not callable(getattr(module, "solution", None)):
            return False, "the module defines no function `solution`", {}
    except Exception as error:  # any other is the candidate's
        if not any(words in str(error) for words in NEEDS_A_GPU):
            raise
        notes.append(f"the import ended early, for want of a GPU: {error}")
    if may_build(source):
        notes += build_what_functions_build(source, module)
    if len(recorder.libraries) > MAX_EXTENSIONS:
        return False, f"it builds {len(recorder.libraries)} extensions; at most {MAX_EXTENSIONS} can be", {}
    libraries = {}
    for key, path in recorder.libraries.items():
        with open(path, "rb") as file:
            libraries[key] = file.read()
    if sum(map(len, libraries.values())) > MAX_EXTENSIONS_BYTES:
        return False, f"its extensions are larger than {MAX_EXTENSIONS_BYTES >> 20} MiB", {}
    return True, "\n".join(notes)[-8000:], libraries
