"""A package `triton` for ranks on the CPU, with the names of Triton 3.9 that a run under GSan touches.

Its kernels are Python functions, whose `tl.load` and `tl.store` reach whole tensors. Symmetric memory lies in files of
the gang's folder, each with a list of accesses beside it: two of different ranks, one of them a store, with no barrier
between them end the process's kernel as a device assertion does, with the line that the CUDA driver prints.
"""

from __future__ import annotations

from pathlib import Path

VERSION = "3.9.0"

KERNELS = """
import contextlib, os, sys
import torch
from triton import knobs

places, epochs, pools = {}, {}, []


class MemPool:
    pass


@contextlib.contextmanager
def use_mem_pool(pool):
    assert isinstance(pool, MemPool)
    pools.append(pool)
    yield
    pools.pop()


torch.cuda.use_mem_pool = use_mem_pool  # the machine of these ranks has no CUDA


def jit(function):
    return Kernel(function)


class Kernel:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        assert pools, "a kernel outside of the pool"
        return self.function


def fail(text):
    frame = sys._getframe(2)
    while frame.f_globals["__name__"].startswith("triton"):
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    for thread in range(2):
        print(f"{name}:{line}: : block: [3,0,0], thread: [{thread},0,0] Assertion `{text}` failed.", file=sys.stderr)
    raise RuntimeError("CUDA error: device-side assert triggered\\nCompile with `TORCH_USE_CUDA_DSA`.")


def watch(tensor, kind):
    path = places.get(tensor.data_ptr())
    if path is None or knobs.compilation.instrumentation_mode != "gsan":
        return
    rank = os.environ["RANK"]
    with open(path + ".accesses", "a") as file:
        file.write(f"{rank} {epochs.get(path, 0)} {kind}\\n")
    with open(path + ".accesses") as file:
        for other, epoch, before in (line.split() for line in file):
            if other != rank and int(epoch) == epochs.get(path, 0) and "write" in (kind, before):
                fail(f"{kind.capitalize()} after {before} race detected")
"""

LANGUAGE = """
from triton.kernels import fail, watch


def load(tensor):
    watch(tensor, "read")
    return tensor.clone()


def store(tensor, value):
    watch(tensor, "write")
    tensor.copy_(value)


def device_assert(condition, text):
    if not condition:
        fail(text)
"""

SYMMETRIC = """
import os
import torch
import torch.distributed as dist
from triton.kernels import epochs, places, pools

seeds, files = [], []


def configure(group, *, rng_seed=None, clock_buffer_size=None):
    assert not files and 0 <= rng_seed < 1 << 32
    seeds.append(rng_seed)


def path_of(rank, index):
    return os.path.abspath(f"symmetric-{index}-of-{rank}")


def empty(*size, dtype=None, device=None):
    assert seeds, "not configured"
    size = size[0] if isinstance(size[0], (tuple, list)) else size
    path = path_of(dist.get_rank(), len(files))
    count = max(1, torch.Size(size).numel())
    tensor = torch.from_file(path, shared=True, size=count, dtype=dtype).view(size)
    files.append(path)
    places[tensor.data_ptr()] = path
    return tensor


class Handle:
    def __init__(self, tensor, index):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        nbytes = tensor.untyped_storage().nbytes()
        self.paths = [path_of(rank, index) for rank in range(self.world_size)]
        self.bytes = [torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8) for path in self.paths]
        self.bytes[self.rank] = tensor.view(-1).view(torch.uint8)
        places.update({own.data_ptr(): path for own, path in zip(self.bytes, self.paths)})

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        begin = storage_offset * dtype.itemsize
        return self.bytes[rank][begin : begin + torch.Size(sizes).numel() * dtype.itemsize].view(dtype).view(sizes)

    def barrier(self, channel=0, timeout_ms=0):
        assert channel == 0, "Only channel=0 is supported in GSan symmetric memory."
        dist.barrier()
        for path in self.paths:
            epochs[path] = epochs.get(path, 0) + 1


def rendezvous(tensor, group):
    dist.barrier()
    return Handle(tensor, files.index(places[tensor.data_ptr()]))
"""


def install(folder: Path) -> None:
    """Writes the package into a folder, as an installed one."""
    files = {
        "triton/__init__.py": "from . import knobs, language\nfrom .kernels import jit\n",
        "triton/knobs.py": "class compilation:\n    instrumentation_mode = ''\n",
        "triton/kernels.py": KERNELS,
        "triton/language.py": LANGUAGE,
        "triton/experimental/__init__.py": "",
        "triton/experimental/gsan/__init__.py": "from triton.kernels import MemPool as create_mem_pool\n",
        "triton/experimental/gsan/symmetric_memory.py": SYMMETRIC,
        f"triton-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: triton\nVersion: {VERSION}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
