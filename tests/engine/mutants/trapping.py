"""Kernels that end with an error where they reach an operation: one that passes never reaches it."""

from __future__ import annotations

import re

_HIT = """#include <cstdlib>
#ifdef __CUDACC__
#define PKB_TRAP_BOTH __host__ __device__
#else
#define PKB_TRAP_BOTH
#endif
namespace pkb_trap {
PKB_TRAP_BOTH inline void hit() {
#ifdef __CUDA_ARCH__
  __trap();
#else
  std::abort();
#endif
}
}  // namespace pkb_trap
"""
_STATEMENT = re.compile(r"__(?:threadfence|sync)\w*\(\)")


def with_trap(text: str, start: int, end: int) -> str:
    """The kernel, trapping where it reaches an operation.

    Args:
        text: Text of the kernel, its headers inlined.
        start: Begin of the operation: an expression, or part of an asm statement's text.
        end: End of the operation.
    """
    line = text.rfind("\n", 0, start) + 1
    if text.count('"', line, start) % 2 == 1 or text[start] == '"':
        quote = start if text[start] == '"' else text.rfind('"', line, start)
        return f"{text[: quote + 1]}trap; {text[quote + 1 :]}"
    code = text[start:end]
    trapping = "::pkb_trap::hit()" if _STATEMENT.match(code) else f"(::pkb_trap::hit(), {code})"
    begin = re.search(r"^(?!#include|#pragma|//|\s*$)", text, re.MULTILINE)
    head = begin.start() if begin else 0
    return f"{text[:head]}{_HIT}{text[head:start]}{trapping}{text[end:]}"
