"""The stack trace that a rank writes when a signal ends it."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys

EXPORTED = "__tvm_ffi_solution"
"""As in `compile.toolchain`: an address in the candidate's library."""


def trace_native_code(tracer: str, library: str) -> None:
    """From now on, signals that end this process are preceded by a line with the places in the candidate's library.

    Args:
        tracer: path of the compiled `debugging/stack_trace.cpp`.
        library: path by which the candidate's library was loaded.
    """
    address = ctypes.cast(getattr(ctypes.CDLL(library), EXPORTED), ctypes.c_void_p)
    ctypes.CDLL(tracer).pkb_trace_signals(address)


def trace_python_code() -> None:
    """From now on, signals that end this process are preceded by the interpreter's stack."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # the FFI library's handler would print the interpreter's own calls
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGQUIT, sys.stderr, chain=True)
