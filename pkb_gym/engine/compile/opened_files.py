"""The files that a compiler opened for a source, as the preprocessor and the assembler list them.

A source may include headers of the compiler's own folders and nothing else: a name in quotes can be put together by
macros and an assembler directive by concatenation, unseen in the text. A log of other files is not shown,
nor the excerpts that a compiler shows of a file because the source gives itself that file's name (`#line`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pkb_gym.engine.compile.sandboxed_compiler import Run
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.visible_folders import is_below

ASSEMBLED = "assembled.d"
MAX_LINE_CHARS = 2000
MAX_PATH_CHARS = 4096
"""Longer ones than PATH_MAX of limits.h lead nowhere, and take long to resolve."""

NO_LTO = "-fno-lto"
GXX_FLAGS = ("-H", f"-Wa,--MD,{ASSEMBLED}", NO_LTO)
NVCC_FLAGS = ("-Xcompiler=-H", f"-Xcompiler=-Wa\\,--MD\\,{ASSEMBLED}")
"""-H lists each header on a line of its own when it is opened, also where compilation fails later; --MD those files
that the assembler includes. A source can hold sections for link-time optimisation, by which the linker would run the
assembler again: its list would then be that of the second run alone."""

_MARK = "-- assembled --"
_SCRIPT = f'"$@"; status=$?; echo "{_MARK}"; test ! -e {ASSEMBLED} || cat {ASSEMBLED}; exit $status'
_HEADER = re.compile(r"(?:\.{1,200}|\.{0,200}[!x]) (\S.*)")
"""One dot for each level; "!" or "x" before a precompiled header that is used or does not fit."""

_GUARDS = "Multiple include guards may be useful for:"
_ASSEMBLER = re.compile(r"(/[^:]+):(?: Assembler messages:|\d+: (?:Error|Warning|Info):)")
_LOCATION = re.compile(r"(.+?):\d+:(?:\d+:)? ")
"""Pattern of the beginning of a message; lines of the file, which the compiler opens by that name, follow indented."""

_TEMPORARY = re.compile(r"(?:.*/)?(?:cc\w+\.(?:s|o)|tmpxft_[\w.-]+)")
"""Names that g++ and nvcc give to their own."""


def listing(command: Sequence[str]) -> list[str]:
    """The command that runs a compiler with the flags above and appends the assembler's list to its output."""
    return ["sh", "-c", _SCRIPT, "sh", *command]


def checked(run: Run, folders: Sequence[Path]) -> Run:
    """A run of `listing` without the lists, which names headers as sources include them.

    One that opened other files has failed, with this as its only output.

    Args:
        run: Run of the compiler with the lists in its output.
        folders: Folders that headers may lie in.
    """
    lines, assembled = _split(run.output)
    log, opened = _without_headers(lines)
    allowed = [os.path.realpath(folder) for folder in folders]
    opened += [*_prerequisites(assembled), *(found[1] for line in log if (found := _ASSEMBLER.match(line)))]
    foreign = next((path for path in opened if not _is_allowed(path, allowed)), None)
    log = _with_short_names(_without_excerpts(log, allowed), [*map(str, folders), *allowed])
    if foreign is None and (run.status is None or not run.truncated):
        shown = [line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ..." for line in log]
        return dataclasses.replace(run, output="\n".join(shown))
    reason = (
        "the compiler writes more than is read of it"
        if foreign is None
        else f"the source opens a file that is no header of the compiler: {foreign[:200]!r}; include headers by name"
    )
    return dataclasses.replace(run, output=f"error: {reason}\n", result=b"", status=run.status or 1)


def opened_headers(run: Run) -> tuple[str, ...]:
    """The headers that a run of `listing` opened, each once."""
    return tuple(dict.fromkeys(_without_headers(_split(run.output)[0])[1]))


def _split(output: str) -> tuple[list[str], str]:
    """The compiler's lines, and the assembler's list; without the mark there is no list.

    Lines are whole: what a path leads to may stand at its end.
    """
    log, mark, rest = output.rpartition(f"{_MARK}\n")
    return (log.split("\n"), rest) if mark else (output.split("\n"), "")


def _without_headers(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    log, opened, in_guards = [], [], False
    for line in lines:
        header = _HEADER.fullmatch(line)
        in_guards = line == _GUARDS or (in_guards and line.startswith("/") and ":" not in line)
        if header:
            opened.append(header[1])
        elif not in_guards:
            log.append(line)
    return log, opened


def _without_excerpts(log: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The log without what it quotes of files that the source only names."""
    shown, is_foreign = [], False
    for line in log:
        if not line.startswith(" "):
            location = _LOCATION.match(line)
            is_foreign = location is not None and not _is_allowed(location[1], folders)
        if not (is_foreign and line.startswith(" ")):
            shown.append(line)
    return shown


def _with_short_names(log: Sequence[str], folders: Sequence[str]) -> list[str]:
    """The log with names of headers from their folder on: machines differ in what comes before."""
    prefixes = sorted({f"{folder}/" for folder in folders}, key=len, reverse=True)
    begins = re.compile("|".join(map(re.escape, prefixes)) or "(?!)")
    return [begins.sub("", line) for line in log]


def _prerequisites(rule: str) -> list[str]:
    """The files that a rule for make names behind its target."""
    return rule.partition(": ")[2].replace("\\\n", " ").split()


def _is_allowed(path: str, folders: Sequence[str]) -> bool:
    if _TEMPORARY.fullmatch(path) or ("/" not in path and path.startswith("kernel.")):
        return True
    if len(path) > MAX_PATH_CHARS:
        return False
    return Path(path).is_absolute() and is_below(os.path.realpath(path), folders)


@cache
def header_folders() -> tuple[Path, ...]:
    """The folders in which g++ itself looks for headers, and those that they link to.

    Raises:
        InfrastructureError: its output lists none.
    """
    run = subprocess.run(
        ["g++", "-E", "-v", "-x", "c++", os.devnull], capture_output=True, text=True, check=False, timeout=20
    )
    listed = re.search(r"^#include <\.\.\.> search starts here:\n((?: .*\n)+)", run.stderr, re.MULTILINE)
    if listed is None:
        raise InfrastructureError(f"g++ does not list its folders of headers: {run.stderr[-500:]}")
    folders = [Path(line.strip()) for line in listed[1].splitlines()]
    return (*folders, *linked_folders(folders))


def linked_folders(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The folders elsewhere that hold asm/errno.h: Debian 13 links each header of the kernel from there."""
    real = [os.path.realpath(folder) for folder in folders]
    headers = [os.path.realpath(folder / "asm/errno.h") for folder in folders if (folder / "asm/errno.h").exists()]
    return tuple(Path(header).parents[1] for header in headers if not is_below(header, real))
