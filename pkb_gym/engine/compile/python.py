"""Sources of the python dialect: imported once in a build gang, which captures the extensions they build."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from functools import cache
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.nvcc import FEATURE_SPECIFIC, find_toolkit, nvcc_available, nvcc_version
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.hardware.division import division
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.header_libraries import find_all
from pkb_gym.engine.wire.build_orders import MAX_EXTENSIONS, Build, Built, CudaTools

BUILD = Confinement(memory_bytes=6 << 30, file_bytes=256 << 20, allow_processes=True, open_files=512)


EXTENSION_KEY = re.compile(r"[\w.-]{1,100}:[0-9a-f]{32}")
"""Key of an extension, as `rankside.extensions.Recorder` makes it; it also names memory files, which have limits."""


def build_python(source: str, compile_cache: CompileCache, zygote: Zygote, timeout_s: float) -> Artifact:
    """Imports a module in a gang of one rank, or takes the result from the cache.

    Args:
        source: Source text of the module.
        compile_cache: Cache of compile results.
        zygote: Sandboxed zygote that imports the module.
        timeout_s: Deadline of the import in seconds, compilers that it calls included.

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
        tools=repr(tools := _tools()),
        libraries=[found.identity for found in find_all()] if tools else None,
    )

    def import_now() -> Compiled:
        with Gang(zygote, ".builder", 1, BUILD) as gang:
            if working := division().working:
                gang.processes.move([sorted(working)])
            try:
                gang.send([Build(tools)], raw=source.encode())
                replies = gang.collect(Built, timeout_s=timeout_s)
            except GangFailed as failed:
                lasting = failed.failure not in (Failure.TIMEOUT, Failure.DEADLOCK)
                log = f"{failed}\n{gang.output_of(0)}".strip()
                artifact = Artifact(ok=False, log=log, duration_s=0.0 if lasting else timeout_s)
                return Compiled(artifact, lasting, failed.killed or failed.by_sigkill)
            return Compiled(_artifact(replies.messages[0], replies.raw[0], gang.output_of(0)), lasting=True)

    return cached_compile(compile_cache, key, import_now)


def _artifact(built: Built, body: bytes, output: str) -> Artifact:
    """The result as the build gang reports it; a module that was imported there can report anything."""
    log = f"{built.log}\n{output}".strip()
    sound = all(EXTENSION_KEY.fullmatch(key) and size >= 0 for key, size in built.sizes.items())
    sound = sound and len(built.sizes) <= MAX_EXTENSIONS
    if not sound or sum(built.sizes.values()) != len(body):
        return Artifact(ok=False, log=f"the import broke the protocol of its build\n{log}".strip(), duration_s=0.0)
    extensions, offset = {}, 0
    for name, size in built.sizes.items():
        extensions[name] = body[offset : offset + size]
        offset += size
    return Artifact(ok=built.ok, log=log, duration_s=max(0.0, built.seconds), extensions=extensions)


RANKSIDE = Path(__file__).resolve().parent.parent / "rankside"


@cache
def _builder_sha256() -> str:
    """Digest of the programs that decide what is built, and how."""
    digest = hashlib.sha256()
    names = ("builder.py", "extensions.py", "thunderkittens.py")
    for path in (*(RANKSIDE / name for name in names), *sorted(RANKSIDE.glob("shims/**/*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _tools() -> CudaTools | None:
    if not nvcc_available():
        return None
    major, minor = gpus.compute_capability() or (9, 0)
    suffix = "a" if (major, minor) in FEATURE_SPECIFIC else ""
    return CudaTools(str(find_toolkit()), (major, minor), f"{major}.{minor}{suffix}")
