"""Names by which a candidate's library finds the emulator's CUDA runtime, and no other.

On a machine with GPUs torch has loaded NVIDIA's runtime and driver for the whole process before, and the dynamic linker
looks there first. So the functions that a library needs of either are renamed in its table of names: `cudaMalloc` is
`CUDAMalloc`, which the emulator alone exports. The names of functions that are needed are in no hash table.
"""

from __future__ import annotations

import re
from io import BytesIO

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_NEEDED = re.compile(r"_*(?=cuda[A-Z]|cu[A-Z])")
_LACKING = re.compile(r"(undefined symbol: _*)(CUDA|CU)(?=[A-Z])")


def emulated_names(binary: bytes) -> bytes:
    """A library that needs functions of the CUDA runtime and driver under the emulator's names.

    Args:
        binary: of a candidate.
    """
    symbols = ELFFile(BytesIO(binary)).get_section_by_name(".dynsym")
    if not isinstance(symbols, SymbolTableSection):
        return binary
    names_at = ELFFile(BytesIO(binary)).get_section(symbols["sh_link"])["sh_offset"]
    renamed = bytearray(binary)
    for symbol in symbols.iter_symbols():
        found = _NEEDED.match(symbol.name)
        if found and symbol["st_shndx"] == "SHN_UNDEF":
            begin = names_at + symbol.entry["st_name"] + found.end()
            length = len("cuda") if symbol.name.startswith("cuda", found.end()) else len("cu")
            renamed[begin : begin + length] = renamed[begin : begin + length].upper()
    return bytes(renamed)


def original_names(text: str) -> str:
    """A message of the dynamic linker with the names as the source has them."""
    return _LACKING.sub(lambda found: found[1] + found[2].lower(), text)
