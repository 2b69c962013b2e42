"""Source lines of host code, for findings that know the offset of a call in its library."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from bisect import bisect_right
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path

from rank_emulator.findings import Access, Finding

CALL_SITE = "+host"
"""File of accesses whose line is the offset of a call (`World`, call_sites)."""

SYSTEM = "/usr/"
"""Where headers lie that are not the program's."""


def with_host_lines(findings: tuple[Finding, ...], library: bytes) -> tuple[Finding, ...]:
    """Findings whose copies and fills have lines of the source, where the library has them; else none.

    Args:
        findings: Findings of a world with `call_sites`.
        library: Content of the library whose host code has run.
    """
    return tuple(_named(finding, library) if f"({CALL_SITE}:" in finding.message else finding for finding in findings)


def named(message: str, library: bytes) -> str:
    """A message with the lines of host code, where the library has them."""

    def text(found: re.Match[str]) -> str:
        place = line_of(library, int(found[1]))
        return f" ({Path(place[0]).name}:{place[1]})" if place else ""

    return re.sub(rf" \({re.escape(CALL_SITE)}:(\d+)\)", text, message)


def _named(finding: Finding, library: bytes) -> Finding:
    message = named(finding.message, library)
    return replace(
        finding, message=message, first=_located(finding.first, library), second=_located(finding.second, library)
    )


def _located(access: Access | None, library: bytes) -> Access | None:
    if access is None or access.file != CALL_SITE or access.line is None:
        return access
    file, line = line_of(library, access.line) or (None, None)
    return replace(access, file=file, line=line)


def line_of(library: bytes, offset: int) -> tuple[str, int] | None:
    """File and line of the instruction at an offset of a library; None where its debug information has none.

    Of what a function of the system's headers does in place, such as the load of an atomic, it is the line that calls
    this function.
    """
    addresses, places = _lines(library)
    at = bisect_right(addresses, offset) - 1
    place = places[at] if at >= 0 else None
    if place is None or not place[0].startswith(SYSTEM):
        return place
    callers = [caller for caller in _inlined_at(library, offset) if not caller[0].startswith(SYSTEM)]
    return callers[0] if callers else place


@cache
def _inlined_at(library: bytes, offset: int) -> list[tuple[str, int]]:
    """Lines of the functions that are inlined into each other at an offset, the innermost first."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        command = ["addr2line", "-i", "-e", file.name, hex(offset)]
        try:
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return []
    found = re.findall(r"^(/.*):(\d+)", printed, re.MULTILINE)
    return [(os.path.normpath(path), int(line)) for path, line in found]


@cache
def _lines(library: bytes) -> tuple[list[int], list[tuple[str, int] | None]]:
    """Where the instructions of each line begin, in ascending order, and the lines; None behind the end of a part."""
    from elftools.elf.elffile import ELFFile

    rows: list[tuple[int, tuple[str, int] | None]] = []
    elf = ELFFile(BytesIO(library))
    if not elf.has_dwarf_info():
        return [], []
    dwarf = elf.get_dwarf_info()
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        header = program.header
        first = 0 if header["version"] >= 5 else 1
        folder = os.fsdecode(unit.get_top_DIE().attributes["DW_AT_comp_dir"].value)
        folders = [os.fsdecode(name) for name in header["include_directory"]]
        folders = folders if first == 0 else [folder, *folders]
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            if state.end_sequence:
                rows.append((state.address, None))
                continue
            file = header["file_entry"][state.file - first]
            path = Path(folder, folders[file.dir_index], os.fsdecode(file.name))
            rows.append((state.address, (os.path.normpath(path), state.line)))
    rows.sort(key=lambda row: (row[0], row[1] is not None))
    return [address for address, _ in rows], [place for _, place in rows]
