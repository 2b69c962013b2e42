"""Tensors for native kernels, made of an address: DLPack structures (dlpack.h, version 0) that own nothing.

torch gives an empty tensor no address; a kernel needs one to find its peers' tensors, which need not be empty.
On a GPU, torch believes the device that is named here, where it would otherwise ask whose memory an address is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

DTYPE_CODES = {
    "bfloat16": (4, 16),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "int64": (0, 64),
    "int32": (0, 32),
    "float8_e4m3fn": (10, 8),
    "uint8": (1, 8),
    "bool": (6, 8),
}
"""Name of a dtype -> DLPack's type code, and bits."""


_CUDA, _CPU = 2, (1, 0)  # kDLCUDA; kDLCPU and its index


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@lru_cache(maxsize=256)
def _contiguous(shape: tuple[int, ...]) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_int64]]:
    """A shape and its strides, in elements: a block has hundreds of tensors of a few shapes."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim], step = step, step * max(1, shape[dim])
    numbers = ctypes.c_int64 * max(1, len(shape))
    return numbers(*shape), numbers(*strides)


class HeapTensor:
    """A contiguous tensor at an address; keep it alive as long as anything made from it.

    Args:
        address: Address of the first element.
        shape: Shape of the tensor.
        dtype: Name.
        cuda_device: Index of the GPU that reads it; None on the CPU.
    """

    def __init__(self, address: int, shape: Sequence[int], dtype: str, cuda_device: int | None = None) -> None:
        self._device = _CPU if cuda_device is None else (_CUDA, cuda_device)
        self._shape, self._strides = _contiguous(tuple(shape))
        code, bits = DTYPE_CODES[dtype]
        tensor = _DLTensor(address, *self._device, len(shape), code, bits, 1, self._shape, self._strides, 0)
        self._managed = _DLManagedTensor(tensor, None, None)

    def __dlpack__(self, **_: Any) -> object:
        """A capsule whose deleter does nothing."""
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and index."""
        return self._device
