"""The stack trace that a rank writes when a signal ends it, or an exception its kernel."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from collections.abc import Callable

EXPORTED = "__tvm_ffi_solution"
"""Name of the candidate's exported function, the same as in `compile.toolchain`: an address in its library."""


def trace_native_code(tracer: str, library: str) -> Callable[[], object]:
    """Makes signals that end this process print a line first, with the places in the candidate's library.

    Args:
        tracer: Path of the compiled `debugging/stack_trace.cpp`.
        library: Path by which the candidate's library was loaded.

    Returns:
        A function that writes such a line for the last C++ exception of the thread that calls it.
    """
    address = ctypes.cast(getattr(ctypes.CDLL(library), EXPORTED), ctypes.c_void_p)
    code = ctypes.CDLL(tracer)
    code.pkb_trace_library(address)
    trace_thrown: Callable[[], object] = code.pkb_trace_thrown
    return trace_thrown


def signal_tracer(tracer: str) -> int:
    """The address of a C function that writes the line of a signal, with the parameters of the signal's handler.

    Args:
        tracer: Path of the compiled `debugging/stack_trace.cpp`.
    """
    address: int | None = ctypes.cast(ctypes.CDLL(tracer).pkb_trace_signal, ctypes.c_void_p).value
    assert address is not None
    return address


def trace_python_code() -> None:
    """Makes signals that end this process print the interpreter's stack first."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # the FFI library's handler would print the interpreter's own calls
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGQUIT, sys.stderr, chain=True)
