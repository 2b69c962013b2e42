"""Compiling at most once: what all compilers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.records.artifact import Artifact


@dataclass(frozen=True)
class Compiled:
    """The result of one run of a compiler.

    Attributes:
        artifact: Result of the compile, good or bad.
        lasting: Whether another compile would give the same result: errors in the source last, a missed deadline does
            not.
        killed: Whether a process of the compiler was killed, for which the source need not be the cause.
    """

    artifact: Artifact
    lasting: bool
    killed: bool = False


def cached_compile(cache: CompileCache, key: str, compile_now: Callable[[], Compiled]) -> Artifact:
    """The result that the cache holds, or a new one, which is kept if it lasts.

    A compiler that was killed is run once more: the memory may have been short for a moment. If it is killed again,
    that is the doing of the source.

    Args:
        cache: Cache of compile results.
        key: Key of the result, as from `CompileCache.key`.
        compile_now: Function that runs the compiler.
    """
    found = cache.get(key)
    if found is not None:
        return found
    compiled = compile_now()
    if compiled.killed:
        compiled = compile_now()
    if compiled.lasting and not compiled.killed:
        cache.put(key, compiled.artifact)
    return compiled.artifact
