"""Sources compiled together, each of which the cache then answers for: compilers spend most of their time on headers.

A library holds all of them. A number in its data chooses one, and is the only difference between the libraries of two:
one compile serves all. Evaluations of C++ sources read each source as it is, and messages name its own lines. A source
may take the includes of those before it: what a user is to have is read by itself, too (`compiling.cpp_errors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import FLAGS, compile_cpp
from pkb_gym.engine.records.artifact import Artifact

TIMEOUT_S = 600.0
QUICK_FLAGS = tuple("-O1" if flag == "-O3" else flag for flag in FLAGS)
"""Half of the processor time: for sources of which tests ask what is wrong with them, not how quick they are."""
EXPORT = re.compile(r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC\(solution, (\w+)\);$", re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
OF_ALL = re.compile(
    r"""
    # Macros, and settings of the compiler, hold for the sources behind them.
    ^[ \t]*\#[ \t]*(?!include\b|pragma[ ]unroll\b)\w
    | \bextern[ ]"C" | ^namespace[ ](?:tvm|pkb|std)\b  # names that all have
    | \bconstructor\b | ^\w[^()\n]*=[ ]\[  # what runs when a library is loaded
    """,
    re.MULTILINE | re.VERBOSE,
)
"""What other sources of a translation unit notice."""

CHOICE = "source number {:03d}"
DISPATCH = """
extern "C" const volatile char chosen[] = "{choice}";

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_solution(void* self, const TVMFFIAny* args, int32_t count,
                                                     TVMFFIAny* result) {{
  switch ((chosen[14] - '0') * 100 + (chosen[15] - '0') * 10 + chosen[16] - '0') {{
{cases}
    default: return -1;
  }}
}}
"""


def dispatch(count: int, number: int = 0) -> str:
    """The function of a library, which calls the one that was exported as `solution_<number>`.

    Args:
        count: Index among the joined sources, from 0; at most 1000.
        number: Index of the one that is called.
    """
    call = "    case {0}: return __tvm_ffi_solution_{0}(self, args, count, result);"
    cases = "\n".join(call.format(each) for each in range(count))
    return DISPATCH.format(choice=CHOICE.format(number), cases=cases)


def chosen(artifact: Artifact, number: int) -> Artifact:
    """The library that calls another one than number 0."""
    assert artifact.binary is not None, artifact.log
    first = CHOICE.format(0).encode()
    assert artifact.binary.count(first) == 1
    return replace(artifact, binary=artifact.binary.replace(first, CHOICE.format(number).encode()))


class Answering(CompileCache):
    """Keeps one artifact under every key that it is asked for."""

    def __init__(self, folder: Path, artifact: Artifact) -> None:
        super().__init__(folder)
        self._artifact = artifact

    def get(self, key: str) -> Artifact:
        self.put(key, self._artifact)
        return self._artifact


def can_join(source: str) -> bool:
    """Whether a source is a kernel that others beside it do not notice, as far as its text shows."""
    return len(EXPORT.findall(source)) == 1 and not OF_ALL.search(source)


def joined(sources: Sequence[str], file: str = "kernel.cpp") -> str:
    """One translation unit. Before each source stand its own includes.

    Args:
        sources: Sources that can be joined.
        file: Name of each in messages.
    """
    parts = []
    for number, source in enumerate(sources):
        text = EXPORT.sub("", INCLUDE.sub("", source))
        parts += INCLUDE.findall(source)
        parts += [f"namespace source_{number} {{", f'#line 1 "{file}"', text, "}"]
        parts.append(f'#line {number + 1} "joined"')
        parts.append(f"TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution_{number}, source_{number}::{EXPORT.findall(source)[0]});")
    return "\n".join(parts) + dispatch(len(sources))


def compile_together(sources: Iterable[str], cache: CompileCache, flags: Sequence[str] = QUICK_FLAGS) -> None:
    """Compiles those C++ sources that can be joined; the cache then has a library for each.

    Args:
        sources: Sources whose libraries evaluations will ask for.
        cache: Cache of the evaluator.
        flags: Flags of the compiler.
    """
    together = list(dict.fromkeys(filter(can_join, sources)))
    if len(together) < 2:
        return
    artifact = compile_cpp(joined(together), cache, TIMEOUT_S, flags)
    for number, source in enumerate(together):
        compile_cpp(source, Answering(cache.folder, chosen(artifact, number)), TIMEOUT_S)
