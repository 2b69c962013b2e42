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
        artifact: good or bad.
        lasting: whether it would be the same again: errors in the source are, a deadline that has passed is not.
        killed: whether a process of the compiler was killed, which need not be the doing of the source.
    """

    artifact: Artifact
    lasting: bool
    killed: bool = False


def cached_compile(cache: CompileCache, key: str, compile_now: Callable[[], Compiled]) -> Artifact:
    """The result that the cache holds, or a new one, which is kept if it lasts.

    A compiler that was killed is run once more: the memory may have been short for a moment. If it is killed again,
    that is the doing of the source.

    Args:
        cache: where results are kept.
        key: see `CompileCache.key`.
        compile_now: runs the compiler.
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
