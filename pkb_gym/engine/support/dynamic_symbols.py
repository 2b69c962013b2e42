"""The dynamic symbols of a shared object that a candidate made, read off its bytes: nothing of it is loaded.

Neither the names of sections nor those of symbols are read one by one. The linker puts a name into the end of a longer
one, so that all names together are far longer than the table that they lie in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile

MAX_SECTIONS = 10_000
SYMBOL = struct.Struct("<IBBHQQ")
"""Elf64_Sym of elf(5): where its name begins, kind, visibility, section (0 where it is needed), value, size."""


@dataclass(frozen=True)
class DynamicSymbols:
    """The table of dynamic symbols.

    Attributes:
        entries: Symbols one after the other, each as `SYMBOL`.
        names: Names of the symbols, each ended by a zero byte.
        names_at: Offset of `names` in the file, in bytes.
    """

    entries: bytes
    names: bytes
    names_at: int

    @property
    def count(self) -> int:
        """The number of symbols."""
        return len(self.entries) // SYMBOL.size

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        """For each symbol, the offset of its name in `names`, and whether the library defines it."""
        whole = self.entries[: self.count * SYMBOL.size]
        return ((name, section != 0) for name, _, _, section, _, _ in SYMBOL.iter_unpack(whole))


def dynamic_symbols(binary: bytes) -> DynamicSymbols | None:
    """The first table of dynamic symbols; None where there is none, or more than `MAX_SECTIONS` sections.

    Raises:
        ELFError: it is no ELF file, or a broken one.
    """
    file = ELFFile(BytesIO(binary))
    if file.num_sections() > MAX_SECTIONS:
        return None
    kind, at, size = file.structs.Elf_Shdr, file["e_shoff"], file["e_shentsize"]
    headers = [struct_parse(kind, file.stream, at + index * size) for index in range(file.num_sections())]
    table = next((header for header in headers if header["sh_type"] == "SHT_DYNSYM"), None)
    if table is None or table["sh_entsize"] != SYMBOL.size:
        return None
    if table["sh_link"] >= len(headers):
        raise ELFError(f"names of symbols in section {table['sh_link']} of {len(headers)}")
    names = headers[table["sh_link"]]
    return DynamicSymbols(
        entries=binary[table["sh_offset"] : table["sh_offset"] + table["sh_size"]],
        names=binary[names["sh_offset"] : names["sh_offset"] + names["sh_size"]],
        names_at=names["sh_offset"],
    )
