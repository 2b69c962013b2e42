"""Relocatable device code: several sources whose code for the GPU is one program.

nvlink makes machine code alone of it, so the emulator links the objects' PTX. An object registers its code by a
function of its own name, which nvcc adds where it links; this module writes those that register all objects together.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

_ASKING = re.compile(r"-(?:rdc|-relocatable-device-code)=true|-dc|--device-c")
_OTHER = re.compile(r"-(?:rdc|-relocatable-device-code)=false|-(?:dlto|-dlink-time-opt)|-(?:dlink|-device-link)")
"""What asks for nothing: linking code of the GPU, and optimising it meanwhile, is not left to nvcc."""
_NAMES = ("-rdc", "--relocatable-device-code")

_SOURCE = """\
extern "C" void** __cudaRegisterLinkedBinaries(const void* const* wrappers, int count);
namespace {{
const void* wrappers[{count}];
void (*callbacks[{count}])(void**);
int registered = 0;
void add(void (*callback)(void**), const void* wrapper) {{
  callbacks[registered] = callback;
  wrappers[registered++] = wrapper;
  if (registered < {count}) return;
  void** const handle = __cudaRegisterLinkedBinaries(wrappers, {count});
  for (auto* const each : callbacks) each(handle);
}}
}}  // namespace
"""
_FUNCTION = """\
extern "C" const char __fatbinwrap{name}[];
extern "C" void __cudaRegisterLinkedBinary{name}(void (*callback)(void**), void*, void*, void (*)(void*)) {{
  add(callback, __fatbinwrap{name});
}}
"""


def without_options(flags: Sequence[str]) -> tuple[list[str], bool]:
    """The options of nvcc that are not about relocatable code, and whether the others ask for it."""
    kept: list[str] = []
    asked = False
    rest = iter(flags)
    for flag in rest:
        whole = f"{flag}={next(rest, '')}" if flag in _NAMES else flag
        if _ASKING.fullmatch(whole):
            asked = True
        elif not _OTHER.fullmatch(whole):
            kept.append(flag)
    return kept, asked


def registering_source(objects: Sequence[str]) -> str | None:
    """A source of C++ by which objects and archives register their code together; None where none is relocatable.

    Args:
        objects: Paths of the objects and archives.
    """
    if not objects:
        return None
    line = ["nm", "--undefined-only", "--no-sort", *objects]
    listed = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False).stdout
    names = sorted(set(re.findall(r" U __cudaRegisterLinkedBinary(\w+)$", listed, re.MULTILINE)))
    if not names:
        return None
    return _SOURCE.format(count=len(names)) + "".join(_FUNCTION.format(name=name) for name in names)
