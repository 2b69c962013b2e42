"""The functions of the CUDA runtime and driver that the emulator has, read off its sources."""

from __future__ import annotations

import re
from functools import cache

from .building import contents

_DEFINED = re.compile(r"^PKB_CUDART [^(]*\b(cu(?:da)?[A-Z]\w+)\(", re.MULTILINE)
_OF_OLDER_TOOLKITS = re.compile(r"(#if CUD[A-Z]*_VERSION >= .*?)#else\n.*?(?=#endif)", re.DOTALL)


@cache
def cuda_functions() -> frozenset[str]:
    """Names such as "cudaMalloc", with the headers of CUDA 13. A call of another function ends the run."""
    sources = (text.decode() for name, text in contents().items() if name.startswith("runtime_cuda"))
    return frozenset(name for text in sources for name in _DEFINED.findall(_OF_OLDER_TOOLKITS.sub(r"\1", text)))


def cuda_functions_table() -> str:
    """The functions as a Markdown table: a row for those whose names begin alike, and one for the others."""
    groups: dict[str, list[str]] = {}
    for name in sorted(cuda_functions()):
        groups.setdefault(re.findall(r"[A-Z][a-z]*", name)[0], []).append(f"`{name}`")
    single = [name for names in groups.values() if len(names) == 1 for name in names]
    rows = [f"| {group} | {', '.join(names)} |" for group, names in groups.items() if len(names) > 1]
    return "\n".join(["| group | functions |", "|---|---|", *rows, f"| others | {', '.join(single)} |"])
