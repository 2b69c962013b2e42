"""`get_or_create_parallel_tensor` and `get_or_create_barrier`, as ParallelKittens solutions call them.

Both make the class `TKParallelTensor` of ThunderKittens' `pyutils/parallel_tensor.cuh`: memory of every rank's GPU that
all ranks map, whose descriptors they exchange through /dev/shm and /tmp. An extension brings the class by
BIND_TK_PARALLEL_TENSOR; this module builds it for sources that do not.

Signatures differ between such solutions, so these are liberal: arguments are told apart by their types, or named by any
usual keyword.
"""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

from pkb_gym.engine.wire.orders import FILE_NAME

from .cuda_helpers import compile_cuda_extension

HEADERS = ("kittens.cuh", "pyutils/parallel_tensor.cuh")
BIND = "BIND_TK_PARALLEL_TENSOR"
BINDING = f"""\
#include "kittens.cuh"
#include "pyutils/parallel_tensor.cuh"
#include <torch/csrc/utils/pybind.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {BIND}(m); }}
"""
CLASS = "TKParallelTensor"

KEYWORDS: Mapping[str, Sequence[str]] = {
    "extension": ("extension", "ext", "module", "mod"),
    "name": ("name", "key", "tag"),
    "shape": ("shape", "size"),
    "dtype": ("dtype",),
    "local_rank": ("local_rank", "rank", "dev_idx"),
    "local_world_size": ("local_world_size", "world_size", "num_devices"),
    "multicast": ("multicast", "use_multicast"),
    "device": ("device",),
}

NO_MULTICAST = """\
NVLink multicast is not available here (or switched off by TORCH_SYMM_MEM_DISABLE_MULTICAST=1). Without it these of
ThunderKittens fail: a pgl whose MULTICAST is true (its default), and with it barrier_t, barrier_all, barrier, signal,
signal_all and wait; mc_ptr and mc_ptr_at; multimem<>; TMA stores and reductions to a whole pgl. There remains
pgl<GL, NUM_DEVICES, false> of tensors with multicast=False: loads, stores, atomics and TMA on the layout pgl[i] of a
peer."""


@dataclass(frozen=True)
class _Key:
    """Equal for calls that mean the same tensor."""

    name: Hashable
    shape: tuple[int, ...]
    dtype: torch.dtype
    multicast: bool
    is_barrier: bool


_made: dict[_Key, Any] = {}


def get_or_create_parallel_tensor(*args: Any, **keywords: Any) -> Any:
    """A tensor on every rank that all ranks' kernels reach; the one made before where name, shape and dtype are equal.

    All ranks call it in the same order, as making it is a collective. Its first contents are undefined.

    Args:
        args: In any order that types tell apart: the extension that binds TKParallelTensor, or that class; a name
            (str), which tensors of equal shapes and dtypes need; the shape, of at most 4 positive sizes; the dtype;
            whether multicast (bool, default False); then the local rank and the local world size (int), which are this
            rank's own by default, or the latter alone.
        keywords: The same by name (`KEYWORDS`); others are ignored with a warning.

    Returns:
        The `TKParallelTensor`; `.data_` and `.data()` are its tensor on this rank.

    Raises:
        TypeError: an argument is of no such type, or shape or dtype are missing.
        ValueError: the ranks named are not those of the process group.
        RuntimeError: there is no GPU of this rank's own, no multicast where it is asked for, or no TKParallelTensor.
    """
    wanted = _sort_out("get_or_create_parallel_tensor", args, keywords)
    for field in ("shape", "dtype"):
        if field not in wanted:
            raise TypeError(f"get_or_create_parallel_tensor: no {field}; expected (extension, shape, dtype, ...)")
    _require_own_gpu(wanted)
    return _get_or_create(wanted, multicast=bool(wanted.get("multicast", False)), is_barrier=False)


def get_or_create_barrier(*args: Any, **keywords: Any) -> Any:
    """A parallel tensor of int32 counters that begin at 0, and that no rank gets before all ranks' are zero.

    Args:
        args: As of `get_or_create_parallel_tensor`; the shape is (1, 1) by default, and multicast is used by default
            where the machine has it, as ThunderKittens' `barrier_t` does.
        keywords: The same by name.

    Returns:
        The `TKParallelTensor`.

    Raises:
        TypeError, ValueError, RuntimeError: As of `get_or_create_parallel_tensor`.
    """
    wanted = {"shape": (1, 1), "dtype": torch.int32} | _sort_out("get_or_create_barrier", args, keywords)
    _require_own_gpu(wanted)
    multicast = wanted.get("multicast")
    if multicast is None:
        multicast = _has_multicast() and dist.get_world_size() > 1
        if not multicast and dist.get_world_size() > 1:
            warnings.warn(f"this barrier is made without multicast: {NO_MULTICAST}", stacklevel=2)
    return _get_or_create(wanted, multicast=bool(multicast), is_barrier=True)


def _get_or_create(wanted: dict[str, Any], *, multicast: bool, is_barrier: bool) -> Any:
    if multicast and not _has_multicast():
        raise RuntimeError(f"{CLASS} with multicast=True: {NO_MULTICAST}")
    key = _Key(wanted.get("name"), tuple(wanted["shape"]), wanted["dtype"], multicast, is_barrier)
    if key not in _made:
        make = _tensor_class(wanted.get("extension"))
        tensor = make(list(key.shape), key.dtype, dist.get_rank(), dist.get_world_size(), multicast)
        if is_barrier:
            tensor.data().zero_()
            dist.barrier()
        _made[key] = tensor
    return _made[key]


def _sort_out(function: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names in `KEYWORDS`, however they were passed."""
    numbers = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
    if len(numbers) > 2:
        raise TypeError(f"{function}: expected a local rank and a local world size; got the numbers {numbers}")
    pairs = [*zip(("local_rank", "local_world_size")[-len(numbers) :], numbers, strict=True)] if numbers else []
    pairs += [(_field_of(function, arg), arg) for arg in args if isinstance(arg, bool) or not isinstance(arg, int)]
    names = {name: field for field, others in KEYWORDS.items() for name in others}
    pairs += [(names[name], value) for name, value in keywords.items() if name in names and value is not None]
    fields = [field for field, _ in pairs]
    if repeated := sorted({field for field in fields if fields.count(field) > 1}):
        raise TypeError(f"{function}: got more than one value for {', '.join(repeated)}")
    if others := sorted(keywords.keys() - names.keys()):
        warnings.warn(f"{function} ignores {', '.join(others)}", stacklevel=3)
    return dict(pairs)


def _field_of(function: str, arg: Any) -> str:
    if isinstance(arg, bool):
        return "multicast"
    if isinstance(arg, torch.dtype):
        return "dtype"
    if isinstance(arg, torch.device):
        return "device"
    if isinstance(arg, str):
        return "name"
    if isinstance(arg, ModuleType | type):
        return "extension"
    if isinstance(arg, Sequence) and all(isinstance(size, int) for size in arg):
        return "shape"
    expected = "an extension, a name, a shape, a dtype, a bool for multicast, or numbers of the rank and of ranks"
    raise TypeError(f"{function}: expected {expected}; got {type(arg).__name__}")


def _require_own_gpu(wanted: Mapping[str, Any]) -> None:
    """Refuses ranks that ThunderKittens would not find: it takes a rank's number for that of its GPU."""
    if torch.cuda.device_count() == 0:
        # The beginning is torch's; the build gang takes it for what only ranks can do.
        raise RuntimeError(f"No CUDA GPUs are available: {CLASS} is memory of GPUs, one for each rank")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (got := wanted.get("local_rank", rank)) != rank:
        raise ValueError(f"local_rank is {got}; expected {rank}, the number of this rank")
    if (got := wanted.get("local_world_size", world_size)) != world_size:
        raise ValueError(f"local_world_size is {got}; expected {world_size}, the number of all ranks")
    device = torch.device(wanted.get("device", "cuda"))
    if device.type != "cuda" or device.index not in (None, rank):
        raise ValueError(f"device is {device}; expected cuda:{rank}, the GPU of this rank")
    if torch.cuda.current_device() != rank:
        gpu = torch.cuda.current_device()
        raise RuntimeError(f"{CLASS} needs a GPU for each rank, with its number; rank {rank} has GPU {gpu}")


def _has_multicast() -> bool:
    return _SymmetricMemory.has_multicast_support(DeviceType.CUDA, torch.cuda.current_device())


def _tensor_class(extension: Any) -> Any:
    """The class: the extension itself, or its own, or the one that some extension of this process has registered."""
    if isinstance(extension, type):
        return extension
    bound = getattr(extension, CLASS, None)
    if bound is not None:
        return bound
    # pybind11 registers a C++ class once in a process, below a base class of that name.
    for base in object.__subclasses__():
        if base.__name__ == "pybind11_object":
            for registered in base.__subclasses__():
                if registered.__name__ == CLASS:
                    return registered
    raise RuntimeError(f"no extension here binds {CLASS}; write {BIND}(m) in its PYBIND11_MODULE, and load it first")


def _require_headers() -> None:
    root = os.environ.get("THUNDERKITTENS_ROOT")
    remedy = "set it to a checkout of github.com/HazyResearch/ThunderKittens that has pyutils/parallel_tensor.cuh"
    if not root:
        raise ImportError(f"{__name__} needs ThunderKittens' headers: THUNDERKITTENS_ROOT is not set; {remedy}")
    missing = [name for name in HEADERS if not os.path.isfile(os.path.join(root, "include", name))]
    if missing:
        found = f"THUNDERKITTENS_ROOT={root} has no include/{missing[0]}"
        raise ImportError(f"{__name__} needs ThunderKittens' headers: {found}; {remedy}")


def _bind_for(source: str) -> None:
    """Builds the class, or on a rank loads what was built, for a source that uses it and does not bind it."""
    if source and BIND not in source:
        compile_cuda_extension("parallelkittens_tensor", BINDING)


_require_headers()
_bind_for("".join(linecache.getlines(FILE_NAME)))
