"""Artifacts on their way through the cluster: compiled once, adopted by the cache of each gang that needs them.

An artifact is the file of the compile cache: it carries its own digest, and its name is the digest over all that the
compiler was given. A node whose compiler, processor or GPU differs looks for another name, finds none and compiles.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.service import EvaluationRequest
from pkb_gym.engine.support.source_digest import source_sha256

Artifacts: TypeAlias = Mapping[str, bytes]
"""Name in the compile cache -> content of the file."""


class RecordingCache(CompileCache):
    """A compile cache that knows which results the present compile used; one compile at a time.

    Args:
        folder: Folder of the cached results.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._used: dict[str, None] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> Artifact | None:
        """The result under a key, which is noted as used; see `CompileCache.get`."""
        found = super().get(key)
        if found is not None:
            self._note(key)
        return found

    def put(self, key: str, artifact: Artifact) -> None:
        """Stores a result, which is noted as used; see `CompileCache.put`."""
        super().put(key, artifact)
        self._note(key)

    def take_used(self) -> dict[str, bytes]:
        """Returns the files that were found or stored since the last call."""
        with self._lock:
            used, self._used = self._used, {}
        files = {key: self.export(key) for key in used}
        return {key: content for key, content in files.items() if content is not None}

    def _note(self, key: str) -> None:
        with self._lock:
            self._used[key] = None


def adopt_all(cache: CompileCache, artifacts: Artifacts) -> None:
    """Puts artifacts into a cache; those that cannot be stored are compiled anew there."""
    for key, content in artifacts.items():
        cache.adopt(key, content)


def compile_identity(request: EvaluationRequest) -> str:
    """A digest over the parts of a request that its compile depends on: requests with an equal one share it."""
    config = request.config
    content = [
        source_sha256(request.source),
        config.device,
        config.language,
        config.debug or bool(config.sanitize),
        config.compile_timeout_s,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
