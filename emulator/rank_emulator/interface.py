"""The emulator's C interface: a mirror of `src/driver.h` and `src/detector.h`."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum

from .building import tvm_ffi_folder
from .errors import EmulatorError


class RegionKind(IntEnum):
    """pkb_emu_region_kind: the use of named memory."""

    ARGUMENT, OUTPUT, SCRATCH, SIGNALS, HOST = 1, 2, 3, 4, 6


class Outcome(IntEnum):
    """pkb_emu_outcome: how a run ended. `CRASHED` is of the whole process, which `batch` alone survives."""

    CRASHED = -1
    OK = 0
    DEADLOCK = 1
    STEP_LIMIT = 2
    ILLEGAL_ADDRESS = 3
    MISALIGNED = 4
    UNKNOWN_INSTRUCTION = 5
    TRAP = 6
    BODY_FAILED = 7
    STOPPED = 8
    BAD_LAUNCH = 9


class Options(ctypes.Structure):
    """pkb_emu_options."""

    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("world_size", ctypes.c_int32),
        ("segment_bytes", ctypes.c_uint64),
        ("policy", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("max_steps", ctypes.c_uint64),
        ("max_seconds", ctypes.c_uint64),
        ("one_process", ctypes.c_int32),
        ("call_sites", ctypes.c_int32),
    ]


class Report(ctypes.Structure):
    """pkb_emu_report."""

    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("outcome", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("body_status", ctypes.c_int32),
        ("steps", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("message", ctypes.c_char_p),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int32),
    ]


class DetectorOptions(ctypes.Structure):
    """pkb_emu_detector_options."""

    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("strict", ctypes.c_int32),
        ("races", ctypes.c_int32),
        ("max_findings", ctypes.c_uint32),
        ("found", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
    ]


BODY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DIMENSIONS = ctypes.c_uint32 * 3

_POINTER, _TEXT, _INT, _U32, _U64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "pkb_emu_create": (_POINTER, (ctypes.POINTER(Options),)),
    "pkb_emu_destroy": (None, (_POINTER,)),
    "pkb_emu_print_by_rank": (None, ()),
    "pkb_emu_error": (_TEXT, (_POINTER,)),
    "pkb_emu_segment": (_POINTER, (_POINTER, _INT)),
    "pkb_emu_multicast_segment": (_POINTER, (_POINTER,)),
    "pkb_emu_own": (_POINTER, (_POINTER, _POINTER, _U64)),
    "pkb_emu_foreign": (ctypes.c_int64, (_POINTER, _POINTER, _U64, _POINTER)),
    "pkb_emu_trace": (None, (_POINTER,)),
    "pkb_emu_schedule": (_INT, (_POINTER, _INT, _U64, _U64)),
    "pkb_emu_observe": (_INT, (_POINTER, _POINTER)),
    "pkb_emu_region": (ctypes.c_int64, (_POINTER, _INT, _INT, _TEXT, _POINTER, _U64, _U32, _INT)),
    "pkb_emu_region_remove": (_INT, (_POINTER, ctypes.c_int64)),
    "pkb_emu_set_initialised": (_INT, (_POINTER, _POINTER, _U64, _INT)),
    "pkb_emu_watch_writes": (_INT, (_POINTER, _POINTER, _U64)),
    "pkb_emu_watch_host_writes": (_INT, (_POINTER, _POINTER, _U64, _INT)),
    "pkb_emu_run": (_INT, (_POINTER, BODY, _POINTER, ctypes.POINTER(Report))),
    "pkb_emu_load": (_POINTER, (_POINTER, _TEXT)),
    "pkb_emu_load_ptx": (_INT, (_POINTER, _TEXT)),
    "pkb_emu_launch": (_INT, (_POINTER, _TEXT, *(ctypes.POINTER(_U32),) * 3, _U32, ctypes.POINTER(_POINTER))),
    "pkb_emu_stream": (_POINTER, (_POINTER,)),
    "pkb_emu_arrival": (_INT, (_POINTER, _U64)),
    "pkb_emu_departure": (_INT, (_POINTER, _U64)),
    "pkb_emu_enqueue": (_INT, (_POINTER, FUNCTION, _POINTER, _TEXT)),
    "pkb_emu_synchronize": (_INT, (_POINTER,)),
    "pkb_emu_main": (_INT, (_POINTER, _INT, _POINTER)),
    "pkb_emu_process": (_INT, (_POINTER, _POINTER)),
    "pkb_emu_exchange": (_INT, (_TEXT, _POINTER, _POINTER, _U64)),
    "CUDAGetLastError": (_INT, ()),
    "CUDAGetErrorName": (_TEXT, (_INT,)),
    "CUDAGetErrorString": (_TEXT, (_INT,)),
    "pkb_emu_detector_create": (_POINTER, (ctypes.POINTER(DetectorOptions),)),
    "pkb_emu_detector_destroy": (None, (_POINTER,)),
    "pkb_emu_detector_observer": (_POINTER, (_POINTER,)),
    "pkb_emu_detector_json": (_TEXT, (_POINTER,)),
}


def load_emulator(path: str) -> ctypes.CDLL:
    """Loads the compiled emulator, whose CUDA runtime libraries that are loaded later find.

    Args:
        path: Path of the shared library that `build` made.

    Raises:
        EmulatorError: It cannot be loaded.
    """
    try:
        if "tvm_ffi" not in sys.modules:  # with which comes the library that the emulator is linked with
            ctypes.CDLL(str(tvm_ffi_folder() / "lib" / "libtvm_ffi.so"), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise EmulatorError(f"the emulator cannot be loaded: {error}") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise EmulatorError(f"{path} cannot be loaded as an emulator of this version: it has no {name}")
        function.restype, function.argtypes = result, arguments
    return library
