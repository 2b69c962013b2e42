"""The header of the native dialect, precompiled: g++ takes a second to parse it, which is most of many a compile.

It stands in for `pkb/symm.h` alone and for nothing that a source does not include itself, so that results are the same
with and without. It is kept in the user's cache folder, by compiler, flags and our headers, with the digests of all
headers that went into it and its own; where one of them has changed, it is made anew. A process that uses one holds a
lock on its folder, so that no other removes it meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.opened_files import listing, opened_headers
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.compile.toolchain import INCLUDE, compiler_version, ffi_root, header_digest, include_arguments
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.exclusive import exclusive
from pkb_gym.engine.support.ownership import remove_abandoned, share_ownership, take_ownership

logger = logging.getLogger(__name__)

HEADER = "pkb/symm.h"
PREFIX, PRECOMPILED, MANIFEST = "prefix.h", "prefix.h.gch", "manifest.json"
MAGIC = b"gpch"
"""The first bytes of a precompiled header of g++."""

FOR_OTHERS = stat.S_IROTH | stat.S_IXOTH
TIMEOUT_S = 60.0
MAX_KEPT = 3
"""Each takes some 70 MB; those that no process uses and that were used longest ago are removed."""

_PREAMBLE = re.compile(
    r"""(?: \s | //[^\n]*\n | /\*.*?\*/ | \#[ \t]*include[ \t]*(?:<[^>\n]*>|"[^"\n]*")[ \t]*(?=\n|//|/\*) )*""",
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*["<]{re.escape(HEADER)}[">]', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class _Header:
    """A folder that this process uses, and the descriptor that holds its share of the lock."""

    folder: Path
    lock: int


_LOCK = threading.Lock()
_READY: dict[tuple[Path, str], _Header | None] = {}


def begins_with_header(source: str) -> bool:
    """Whether a source includes the header before anything but comments and other includes.

    Then it may as well be the first: no macro of the source is seen by it. Spliced lines and trigraphs, which would
    make comments out of what looks like code, count as something else.
    """
    preamble = _PREAMBLE.match(source)
    text = preamble[0] if preamble else ""
    return "\\" not in text and "??/" not in text and bool(_INCLUDE.search(_COMMENT.sub(" ", text)))


def precompiled_header(flags: Sequence[str]) -> Path | None:
    """The folder with `PREFIX` and its precompiled form; None where it cannot be made, which is no failure.

    Args:
        flags: Flags of the compiles that use the header, without those of the linker.
    """
    root = env_vars.cache_dir().absolute() / "headers"
    key = CompileCache.key(
        prefix=_prefix(),
        flags=tuple(flags),
        compiler=compiler_version(),
        include=include_arguments(),
        headers=header_digest(),
        processor=cpu_info().identity,
    )
    with _LOCK:  # whoever needs it while it is being made waits for it
        if (root, key) not in _READY:
            try:
                with exclusive(root.parent, key):  # in another process too
                    _READY[root, key] = _find_or_make(root, root / key, flags)
            except OSError as error:
                logger.warning("headers cannot be precompiled in %s: %s", root, error)
                _READY[root, key] = None
        header = _READY[root, key]
        return None if header is None else header.folder


def _prefix() -> str:
    return f'#include "{HEADER}"\n'


def _find_or_make(root: Path, folder: Path, flags: Sequence[str]) -> _Header | None:
    header = _found(folder) or _made(root, folder, flags)
    if header is not None:
        with contextlib.suppress(PermissionError):  # of a cache that this user can only read
            os.utime(folder)
        _prune(root)
    return header


def _found(folder: Path) -> _Header | None:
    """The folder as another process has left it, if it is current."""
    lock = share_ownership(folder)
    if lock is None:
        return None
    if _seen_in_sandboxes(lock) and _is_current(folder):
        return _Header(folder, lock)
    os.close(lock)
    return None


def _seen_in_sandboxes(folder: int) -> bool:
    """Whether compilers can read a folder that this process has open: root in a sandbox cannot read all files."""
    found = os.fstat(folder)
    return found.st_uid == os.geteuid() or found.st_mode & FOR_OTHERS == FOR_OTHERS


def _made(root: Path, folder: Path, flags: Sequence[str]) -> _Header | None:
    root.mkdir(parents=True, exist_ok=True)
    remove_abandoned(root.glob(".*"))
    # Not by `tempfile`, whose folders are their owner's alone, whatever the umask.
    beside = root / f".{secrets.token_hex(8)}"
    beside.mkdir()
    lock = take_ownership(beside)
    try:
        if lock is None or not _make(beside, flags):
            return None
        remove_abandoned([folder])
        with contextlib.suppress(OSError):  # others still use theirs, or one has put its own there
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if lock is not None:
            os.close(lock)
    return _found(folder)


def _make(folder: Path, flags: Sequence[str]) -> bool:
    """Fills a folder; whether the compiler took the header."""
    command = ["g++", *flags, *include_arguments(), "-x", "c++-header", PREFIX, "-o", PRECOMPILED]
    run = run_sandboxed(
        listing(command),
        files={PREFIX: _prefix().encode()},
        result=PRECOMPILED,
        readable=(INCLUDE, ffi_root()),
        limits=CompilerLimits(TIMEOUT_S),
    )
    if run.status != 0 or not run.result.startswith(MAGIC) or run.truncated:
        logger.warning("%s cannot be precompiled: %s", HEADER, run.output[-500:])
        return False
    headers = {path: _sha256(Path(path)) for path in opened_headers(run)}
    manifest = {"headers": headers, "precompiled": hashlib.sha256(run.result).hexdigest()}
    (folder / PREFIX).write_text(_prefix(), encoding="utf-8")
    (folder / PRECOMPILED).write_bytes(run.result)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return True


def _is_current(folder: Path) -> bool:
    """Whether all headers are what they were, and the precompiled one is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        headers: dict[str, str] = manifest["headers"]
        return (
            bool(headers)
            and (folder / PREFIX).read_text(encoding="utf-8") == _prefix()
            and all(_sha256(Path(path)) == digest for path, digest in headers.items())
            and _sha256(folder / PRECOMPILED) == manifest["precompiled"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prune(root: Path) -> None:
    with contextlib.suppress(OSError):  # another process is pruning
        folders = sorted(root.glob("[!.]*"), key=lambda folder: folder.stat().st_mtime)
        remove_abandoned(folders[:-MAX_KEPT])
