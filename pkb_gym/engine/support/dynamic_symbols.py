"""The dynamic symbols of a shared object that a candidate made, read off its bytes: nothing of it is loaded.

Neither the names of sections nor those of symbols are read one by one. The linker puts a name into the end of a longer
one, so that all names together are far longer than the table that they lie in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.common.exceptions import ELFError

MAX_SECTIONS = 10_000
ELF_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
SHT_DYNSYM = 11
HEADER = struct.Struct("<40xQ10xHH")
"""Elf64_Ehdr of elf(5): where the headers of sections are, the size of each, and their number."""
SECTION = struct.Struct("<4xI16xQQI12xQ")
"""Elf64_Shdr: kind, place in the file, size, another section that belongs to it, size of an entry."""
SYMBOL = struct.Struct("<IBBHQQ")
"""Elf64_Sym of elf(5): where its name begins, kind, visibility, section (0 where it is needed), value, size."""


@dataclass(frozen=True)
class DynamicSymbols:
    """The table of dynamic symbols.

    Attributes:
        entries: the symbols, one after the other, each as `SYMBOL`.
        names: their names, each ended by a zero byte.
        names_at: where `names` begins in the file.
    """

    entries: bytes
    names: bytes
    names_at: int

    @property
    def count(self) -> int:
        """The number of symbols."""
        return len(self.entries) // SYMBOL.size

    def __iter__(self) -> Iterator[tuple[int, bool]]:
        """Of each symbol, where its name begins in `names`, and whether the library defines it."""
        whole = self.entries[: self.count * SYMBOL.size]
        return ((name, section != 0) for name, _, _, section, _, _ in SYMBOL.iter_unpack(whole))


def dynamic_symbols(binary: bytes) -> DynamicSymbols | None:
    """The first table of dynamic symbols; None where there is none, or more than `MAX_SECTIONS` sections.

    Raises:
        ELFError: it is no ELF file of this kind of machine, or a broken one.
    """
    if not binary.startswith(ELF_64_LITTLE_ENDIAN):
        raise ELFError("it does not begin as ELF files of 64 bits do")
    try:
        at, entry, count = HEADER.unpack_from(binary)
        if at and not count:  # too many for this field: the first section has their number in place of its size
            count = SECTION.unpack_from(binary, at)[2]
        if count > MAX_SECTIONS:
            return None
        sections = [SECTION.unpack_from(binary, at + entry * index) for index in range(count)]
    except (struct.error, OverflowError) as error:
        raise ELFError(f"it ends before its headers do: {error}") from None
    table = next((section for section in sections if section[0] == SHT_DYNSYM), None)
    if table is None:
        return None
    _, place, size, link, entry = table
    if entry != SYMBOL.size:
        return None
    if link >= len(sections):
        raise ELFError(f"names of symbols in section {link} of {len(sections)}")
    _, names_at, names_size, _, _ = sections[link]
    return DynamicSymbols(
        entries=binary[place : place + size], names=binary[names_at : names_at + names_size], names_at=names_at
    )
