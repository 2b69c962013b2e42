"""Sources of the python dialect: imported once in a build gang, which captures the extensions they build."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import FEATURE_SPECIFIC, find_toolkit, nvcc_available, nvcc_version
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.ranks.gang import Confinement, Gang
from pkb_gym.engine.ranks.sandbox import RANKSIDE
from pkb_gym.engine.ranks.zygote import Zygote
from pkb_gym.engine.rankside.wire import Json
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import Failure

BUILD = Confinement(memory_bytes=6 << 30, file_bytes=256 << 20, allow_processes=True)


EXTENSION_KEY = re.compile(r"[\w.-]{1,100}:[0-9a-f]{16}")
"""Of an extension, as `rankside.extensions.Recorder` makes it; it also names memory files, which have limits."""


def build_python(source: str, compile_cache: CompileCache, zygote: Zygote, timeout_s: float) -> Artifact:
    """Imports a module in a gang of one rank, or takes the result from the cache.

    Args:
        source: text of the module.
        compile_cache: where results are kept.
        zygote: the sandboxed one.
        timeout_s: deadline of the import, compilers that it calls included.

    Raises:
        InfrastructureError: no gang could be started.
    """
    key = CompileCache.key(
        python=source,
        torch=importlib.metadata.version("torch"),
        processor=cpu_info().identity,
        sandbox=zygote.sandboxed,
        builder=_builder_sha256(),
        cuda=nvcc_version() if nvcc_available() else None,
        tools=(tools := _tools()),
    )
    found = compile_cache.get(key)
    if found is not None:
        return found
    with Gang(zygote, ".builder", 1, BUILD) as gang:
        try:
            gang.tell([{"build": True, **tools}], raw=source.encode())
            replies = gang.collect("ok", timeout_s=timeout_s)
        except GangFailed as failed:
            log = f"{failed}\n{gang.output}".strip()
            lasting = failed.failure not in (Failure.TIMEOUT, Failure.DEADLOCK)
            artifact = Artifact(ok=False, log=log, duration_s=timeout_s if not lasting else 0.0)
            if lasting:
                compile_cache.put(key, artifact)
            return artifact
        artifact = _artifact(replies.messages[0], replies.raw[0], gang.output)
    compile_cache.put(key, artifact)
    return artifact


def _artifact(said: Mapping[str, object], body: bytes, output: str) -> Artifact:
    """The result as the build gang tells it; a module that was imported there can say anything."""
    parts, seconds = said.get("parts"), said.get("seconds")
    log = f"{said.get('log') or ''}\n{output}".strip()
    sizes = parts if isinstance(parts, dict) else {}
    sound = isinstance(seconds, int | float) and all(
        EXTENSION_KEY.fullmatch(str(key)) and isinstance(size, int) and size >= 0 for key, size in sizes.items()
    )
    if not isinstance(parts, dict) or not sound or sum(sizes.values()) != len(body):
        return Artifact(ok=False, log=f"the import broke the protocol of its build\n{log}".strip(), duration_s=0.0)
    extensions, offset = {}, 0
    for name, size in sizes.items():
        extensions[str(name)] = body[offset : offset + size]
        offset += size
    assert isinstance(seconds, int | float)
    return Artifact(ok=said.get("ok") is True, log=log, duration_s=max(0.0, float(seconds)), extensions=extensions)


@cache
def _builder_sha256() -> str:
    """Digest of the programs that decide what is built, and how."""
    digest = hashlib.sha256()
    for path in (RANKSIDE / "builder.py", RANKSIDE / "extensions.py", *sorted(RANKSIDE.glob("shims/**/*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _tools() -> dict[str, Json]:
    """What a build gang is told of CUDA: where the toolkit lies, and the GPUs that extensions are for."""
    if not nvcc_available():
        return {}
    major, minor = gpus.compute_capability() or (9, 0)
    suffix = "a" if (major, minor) in FEATURE_SPECIFIC else ""
    return {
        "cuda_home": str(find_toolkit()),
        "compute_capability": [major, minor],
        "architectures": f"{major}.{minor}{suffix}",
    }
