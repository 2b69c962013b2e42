"""Names by which a candidate's library finds the emulator's CUDA runtime, and no other.

On a machine with GPUs torch has loaded NVIDIA's runtime and driver for the whole process before, and the dynamic linker
looks there first. So the functions that a library needs of either are renamed in its table of names: `cudaMalloc` is
`CUDAMalloc`, which the emulator alone exports. The names of functions that are needed are in no hash table.
"""

from __future__ import annotations

import re

from pkb_gym.engine.support.dynamic_symbols import dynamic_symbols

_NEEDED = re.compile(rb"_{0,4}(?P<prefix>cuda|cu)(?=[A-Z])")
"""A bounded number of underscores: each symbol's name is looked at, and many may lie in the end of one long name."""
_LACKING = re.compile(r"(undefined symbol: _*)(CUDA|CU)(?=[A-Z])")


def emulated_names(binary: bytes) -> bytes:
    """A library that needs functions of the CUDA runtime and driver under the emulator's names.

    Args:
        binary: of a candidate.

    Raises:
        ELFError: it is no ELF file.
    """
    symbols = dynamic_symbols(binary)
    if symbols is None:
        return binary
    renamed = bytearray(binary)
    for name, is_defined in symbols:
        found = None if is_defined else _NEEDED.match(symbols.names, name)
        if found:
            begin, end = (symbols.names_at + place for place in found.span("prefix"))
            renamed[begin:end] = found["prefix"].upper()
    return bytes(renamed)


def original_names(text: str) -> str:
    """A message of the dynamic linker with the names as the source has them."""
    return _LACKING.sub(lambda found: found[1] + found[2].lower(), text)
