"""Names by which a library finds the emulator's CUDA runtime, and no other.

On a machine with GPUs another library may have loaded NVIDIA's runtime and driver for the whole process before, and the
dynamic linker looks there first. So the functions that a library needs of either are renamed in its table of names:
`cudaMalloc` is `CUDAMalloc`, which the emulator alone exports. Names of needed functions are in no hash table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO

from .errors import EmulatorError

_NEEDED = re.compile(rb"_{0,4}(?P<prefix>cuda|cu)(?=[A-Z])")
"""A bounded number of underscores: each symbol's name is looked at, and many may lie in the end of one long name."""
_LACKING = re.compile(r"(undefined symbol: _*)(CUDA|CU)(?=[A-Z])")


def emulated_names(binary: bytes, needed: Iterable[int] | None = None) -> bytes:
    """A library that needs functions of the CUDA runtime and driver under the emulator's names.

    Args:
        binary: Content of the shared library.
        needed: Offsets in `binary` of the names of its undefined symbols, each ended by a zero byte. Give them for
            a library that you do not trust: by default the library is read without limits.

    Raises:
        EmulatorError: The library has no table of dynamic symbols.
    """
    renamed = bytearray(binary)
    for offset in _needed_names(binary) if needed is None else needed:
        if found := _NEEDED.match(binary, offset):
            begin, end = found.span("prefix")
            renamed[begin:end] = found["prefix"].upper()
    return bytes(renamed)


def _needed_names(binary: bytes) -> list[int]:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    table = ELFFile(BytesIO(binary)).get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        raise EmulatorError("the library has no table of dynamic symbols")
    names_at: int = table.stringtable["sh_offset"]
    return [names_at + symbol["st_name"] for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF"]


def original_names(text: str) -> str:
    """A message of the dynamic linker with the names as the source has them."""
    return _LACKING.sub(lambda found: found[1] + found[2].lower(), text)
