"""The library that records the call stack of a rank when a signal ends it; see `debugging/stack_trace.cpp`.

Our own code, compiled as candidates are: in the sandbox, once for each compiler.
"""

from __future__ import annotations

from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.errors import InfrastructureError

SOURCE = Path(__file__).resolve().parent.parent / "debugging" / "stack_trace.cpp"
COMMAND = ("g++", "-std=c++17", "-O2", "-shared", "-fPIC", SOURCE.name, "-o", "out.so")
TIMEOUT_S = 60.0


def build_stack_trace(cache: CompileCache) -> bytes:
    """The compiled library.

    Args:
        cache: where compiled results are kept.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    content = SOURCE.read_bytes()
    key = CompileCache.key(stack_trace=content.decode(), command=COMMAND, compiler=compiler_version())

    def compile_now() -> Compiled:
        limits = CompilerLimits(TIMEOUT_S)
        run = run_sandboxed(COMMAND, files={SOURCE.name: content}, result="out.so", limits=limits)
        return compiled_of(run, limits)

    artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"{SOURCE.name} does not compile here: {artifact.log[:2000]}")
    return artifact.binary
