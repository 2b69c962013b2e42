"""The instructions of each kernel, counted in the output of cuobjdump on a compiled source.

What is disassembled was made from untrusted text, so cuobjdump runs in the compiler's sandbox.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, run_sandboxed
from pkb_gym.engine.records.compiler_report import InstructionCounts

PROGRAMS = ("cuobjdump", "nvdisasm")
"""The first takes files apart and has the second read what it finds."""
PACKAGE = "nvidia-cuda-cuobjdump"
LIMITS = CompilerLimits(timeout_s=20.0, memory_kib=4 << 20, output_bytes=64 << 20)

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]+)((?:\.\w+)*)")
_GLOBAL = {"LD": "loads", "LDG": "loads", "ST": "stores", "STG": "stores"}
_KINDS = {
    "ATOM": "atomics",
    "ATOMG": "atomics",
    "RED": "atomics",
    "REDG": "atomics",
    "LDGSTS": "async_copies",
    "UBLKCP": "bulk_copies",
    "UBLKRED": "bulk_reductions",
    "UTMALDG": "tensor_loads",
    "UTMASTG": "tensor_stores",
    "UTMAREDG": "tensor_reductions",
    "LDGMC": "multimem",
    "LDL": "local_loads",
    "STL": "local_stores",
}
"""Instruction -> what it counts as."""


def count_instructions(binary: bytes, toolkit: Path) -> dict[str, InstructionCounts] | None:
    """The instructions of each kernel by its mangled name; None where they cannot be read.

    Args:
        binary: Shared object with machine code for GPUs.
        toolkit: Folder of the CUDA toolkit, which may hold a cuobjdump.
    """
    folder = find_disassembler(toolkit)
    if folder is None:
        return None
    run = run_sandboxed(
        ["env", f"PATH={folder}:/usr/bin:/bin", str(folder / PROGRAMS[0]), "--dump-sass", "kernel.so"],
        files={"kernel.so": binary},
        readable=(folder,),
        limits=LIMITS,
    )
    return dict(count_in(run.output)) if run.status == 0 else None


def count_in(text: str) -> Iterator[tuple[str, InstructionCounts]]:
    """(mangled name, counts) of each function in a disassembly."""
    name, counts = "", Counter[str]()
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            if name:
                yield name, InstructionCounts(**counts)
            name, counts = found[1], Counter()
        elif name and (found := _INSTRUCTION.match(line)) and (kind := kind_of(found[1], found[2])):
            counts[kind] += 1
    if name:
        yield name, InstructionCounts(**counts)


def kind_of(instruction: str, modifiers: str) -> str | None:
    """The field of `InstructionCounts` that an instruction counts in; None for what moves no data."""
    if instruction in _GLOBAL:
        kind = _GLOBAL[instruction]
        return f"system_{kind}" if ".SYS" in modifiers else kind
    if instruction.endswith("MMA"):
        return "matrix"
    return _KINDS.get(instruction)


@cache
def find_disassembler(toolkit: Path) -> Path | None:
    """Folder of cuobjdump and nvdisasm: the toolkit's, on PATH, or of the Python packages; None where there is none."""
    on_path = shutil.which(PROGRAMS[0])
    folders = [toolkit / "bin", *([Path(on_path).resolve().parent] if on_path else []), *_in_package()]
    return next((folder for folder in folders if all((folder / name).is_file() for name in PROGRAMS)), None)


@cache
def disassembler_version(toolkit: Path) -> str | None:
    """The last line of `cuobjdump --version`; None where there is none."""
    folder = find_disassembler(toolkit)
    if folder is None:
        return None
    output = subprocess.run(
        [folder / PROGRAMS[0], "--version"], capture_output=True, text=True, check=False, timeout=20
    ).stdout
    return output.strip().splitlines()[-1] if output.strip() else None


def _in_package() -> Iterator[Path]:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == PROGRAMS[0]:
            yield Path(str(file.locate())).resolve().parent
