"""Compiled results by content: one file per key, written by the evaluator alone.

A file is the SHA-256 of the rest, a JSON head, and the binaries it lists; a newline stands between them. What does not
match its digest, as after an error of the disk, is never loaded. Writers make a temporary file beside it and rename it,
so that concurrent writers of one key both succeed and no reader sees half a file. A cache that cannot be written or
read is no failure: the compile is then done again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.exclusive import exclusive

logger = logging.getLogger(__name__)

FORMAT = 3


class CompileCache:
    """A folder of compiled results.

    Args:
        folder: Folder of the cache, created at the first write.
        max_bytes: Size of the folder in bytes beyond which the least recently used files are removed.
    """

    def __init__(self, folder: Path, max_bytes: int = 2 << 30) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._warned = False
        self._written_bytes = 0

    @classmethod
    def in_folder(cls, cache_dir: Path | None) -> Self:
        """The cache of compiled results in a folder of caches; by default the user's."""
        return cls((cache_dir or env_vars.cache_dir()) / "compile")

    @staticmethod
    def key(**parts: object) -> str:
        """A digest over everything that the result depends on."""
        return hashlib.sha256(json.dumps(parts | {"format": FORMAT}, sort_keys=True).encode()).hexdigest()

    def holds(self, key: str) -> bool:
        """Whether a result is stored, intact or damaged; a look at the folder alone."""
        return self._path(key).exists()

    def get(self, key: str) -> Artifact | None:
        """The stored result, or None."""
        path = self._path(key)
        try:
            file = path.read_bytes()
            if not _is_intact(file):
                raise ValueError("its content does not match its digest")
            # Binaries of megabytes are copied once.
            begin = file.index(b"\n") + 1
            end = file.index(b"\n", begin)
            stored: dict[str, Any] = json.loads(file[begin:end])
            parts, offset = {}, end + 1
            for name, size in stored["parts"].items():
                parts[name] = file[offset : offset + size]
                offset += size
            transfers = stored["transfers"]
            artifact = Artifact(
                ok=stored["ok"],
                log=stored["log"],
                duration_s=stored["duration_s"],
                binary=parts.pop("binary", None),
                object_file=parts.pop("object", None),
                extensions={name.removeprefix("extension:"): data for name, data in parts.items()},
                kernels=tuple(KernelResources.model_validate(kernel) for kernel in stored["kernels"]),
                transfers=None if transfers is None else InstructionCounts.model_validate(transfers),
                cached=True,
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._warn(f"cannot read {path}: {error}")
            return None
        self._touch(path)
        return artifact

    def put(self, key: str, artifact: Artifact) -> None:
        """Stores a result, if that is possible."""
        parts = {} if artifact.binary is None else {"binary": artifact.binary}
        parts |= {} if artifact.object_file is None else {"object": artifact.object_file}
        parts |= {f"extension:{name}": data for name, data in artifact.extensions.items()}
        head = {
            "ok": artifact.ok,
            "log": artifact.log,
            "duration_s": artifact.duration_s,
            "kernels": [kernel.model_dump() for kernel in artifact.kernels],
            "transfers": None if artifact.transfers is None else artifact.transfers.model_dump(),
            "parts": {name: len(data) for name, data in parts.items()},
        }
        content = json.dumps(head).encode() + b"\n" + b"".join(parts.values())
        self._write(self._path(key), _digest(content) + b"\n" + content)

    def _write(self, path: Path, content: bytes) -> bool:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        except OSError as error:
            self._warn(f"cannot write {path}: {error}; results are compiled anew each time")
            return False
        self._written_bytes += len(content)
        if self._written_bytes > self.max_bytes // 16:
            self._written_bytes = 0
            self._prune()
        return True

    def exclusive(self, key: str) -> AbstractContextManager[None]:
        """One caller on this machine at a time for each key: others wait for a long compile instead of repeating it."""
        return exclusive(self.folder, key)

    def export(self, key: str) -> bytes | None:
        """The file of a stored result, for `adopt` on another machine; None where there is none, or it is damaged."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        return content if _is_intact(content) else None

    def adopt(self, key: str, content: bytes) -> bool:
        """Stores a result that another cache exported, unless it is there already.

        Returns:
            Whether it is stored now; not where its content does not match its digest.
        """
        path = self._path(key)
        if path.exists():
            return True
        if not _is_intact(content):
            self._warn(f"an artifact from another machine is damaged, and compiled anew: {key}")
            return False
        return self._write(path, content)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _touch(self, path: Path) -> None:
        now = time.time()
        try:
            os.utime(path, (now, now))
        except OSError:
            return  # read-only: nothing will be pruned either

    def _prune(self) -> None:
        try:
            files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*/*"))
        except OSError:
            return  # another evaluator is pruning
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("compile cache: %s", message)


def _is_intact(file: bytes) -> bool:
    end = file.find(b"\n")
    return end >= 0 and file[:end] == _digest(memoryview(file)[end + 1 :])


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
