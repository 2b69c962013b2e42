"""Dynamic symbols of libraries, read off their bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from pkb_gym.engine.support.dynamic_symbols import HEADER, SECTION, dynamic_symbols

SOURCE = """
extern "C" int needed(int);
extern "C" int defined(int number) { return needed(number) + 1; }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "source.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "source.cpp", "-o", "library.so"], cwd=folder, check=True)
    return folder / "library.so"


@pytest.fixture(scope="module")
def binary(path: Path) -> bytes:
    return path.read_bytes()


def names_of(binary: bytes) -> list[tuple[str, bool]]:
    symbols = dynamic_symbols(binary)
    assert symbols is not None
    return [(symbols.names[at : symbols.names.index(b"\0", at)].decode(), defined) for at, defined in symbols]


def test_symbols_are_those_that_an_elf_reader_finds(path: Path, binary: bytes) -> None:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        found = [(symbol.name, symbol["st_shndx"] != "SHN_UNDEF") for symbol in table.iter_symbols()]
    assert names_of(binary) == found and {("needed", False), ("defined", True)} < set(found)


def test_a_number_of_sections_may_stand_in_the_first_of_them(binary: bytes) -> None:
    """Where there are more than 65279."""
    at, _, count = HEADER.unpack_from(binary)
    changed = bytearray(binary)
    changed[60:62] = b"\0\0"
    changed[at + 32 : at + 40] = count.to_bytes(8, "little")
    assert names_of(bytes(changed)) == names_of(binary)
    changed[at + 32 : at + 40] = (1 << 40).to_bytes(8, "little")
    assert dynamic_symbols(bytes(changed)) is None, "and so many are not read"


def test_what_is_no_library_or_a_broken_one_is_an_error(binary: bytes) -> None:
    at, entry, count = HEADER.unpack_from(binary)
    assert entry == SECTION.size
    cut = binary[: at + entry * count - 1]
    beyond = binary[:40] + (1 << 63).to_bytes(8, "little") + binary[48:]
    for broken in (b"", b"#!/bin/sh", binary[:50], b"\x7fELF\x01\x01" + binary[6:], cut, beyond):
        with pytest.raises(ELFError):
            dynamic_symbols(broken)
    assert dynamic_symbols(binary[:60] + b"\1\0" + binary[62:]) is None, "no section of symbols"
