"""Sources of the python dialect: imported once in a build gang, which captures the extensions they build."""

from __future__ import annotations

import importlib.metadata

from pkb_gym.engine.compile.artifact import Artifact
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.feedback import Failure
from pkb_gym.engine.ranks.gang import Confinement, Gang, GangFailed
from pkb_gym.engine.ranks.zygote import Zygote

BUILD = Confinement(memory_bytes=6 << 30, file_bytes=256 << 20, allow_processes=True)


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
    )
    found = compile_cache.get(key)
    if found is not None:
        return found
    with Gang(zygote, ".builder", 1, BUILD) as gang:
        try:
            gang.tell([{"build": True}], raw=source.encode())
            replies = gang.collect("ok", timeout_s=timeout_s)
        except GangFailed as failed:
            log = f"{failed}\n{gang.output}".strip()
            lasting = failed.failure not in (Failure.TIMEOUT, Failure.DEADLOCK)
            artifact = Artifact(ok=False, log=log, duration_s=timeout_s if not lasting else 0.0)
            if lasting:
                compile_cache.put(key, artifact)
            return artifact
        said, body = replies.messages[0], replies.raw[0]
        log = f"{said['log']}\n{gang.output}".strip()
    extensions, offset = {}, 0
    for name, size in said["parts"].items():
        extensions[str(name)] = body[offset : offset + int(size)]
        offset += int(size)
    artifact = Artifact(ok=bool(said["ok"]), log=log, duration_s=float(said["seconds"]), extensions=extensions)
    compile_cache.put(key, artifact)
    return artifact
