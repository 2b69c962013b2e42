"""Several candidates in one source: the first dimension of their tensors chooses one, and one compile serves all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.records.config import EvalConfig
from rank_emulator.coverage import cuda_functions
from tests.engine.candidates import Candidate

TENSOR = r"(?:tvm::ffi::)?TensorView"
SIGNATURE = re.compile(rf"^void solution\({TENSOR} tensor, {TENSOR} out, pkb::Comm comm\)", re.MULTILINE)
EXPORT = re.compile(r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC\(solution, solution\);$", re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
GLOBAL = re.compile(r"(?<![\w>:])::(?=k[A-Z])")
"""The global scope, in front of a constant."""
CALL = re.compile(r"\b(cuda[A-Z]\w+)\(")
COLUMNS = 96


def can_join(candidate: Candidate) -> bool:
    """Whether a candidate is one kernel of two tensors, as those of AllReduce and AllGather are."""
    has_form = SIGNATURE.search(candidate.source) and EXPORT.search(candidate.source)
    return bool(has_form) and candidate.outcome not in ("compile_error", "load_error")


def groups(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Those that may lie in one library: of a library that calls what the emulator lacks, nothing is loaded."""
    found: dict[bool, list[Candidate]] = {}
    for candidate in filter(can_join, candidates):
        found.setdefault(bool(lacking(candidate.source)), []).append(candidate)
    return list(found.values())


def lacking(source: str) -> frozenset[str]:
    """Functions of the runtime that a source calls and the emulator lacks."""
    known = cuda_functions()
    called = CALL.findall(source)
    return frozenset(name for name in called if not {name, f"{name}C"} & known)  # templates call the name with C


def in_namespace(namespace: str, name: str, source: str) -> list[str]:
    """Lines of a source without its includes and its export; its constants of the global scope are of the namespace.

    Args:
        namespace: Namespace of the code.
        name: Name of the file in messages.
        source: Text of the source.
    """
    text = GLOBAL.sub(f"{namespace}::", EXPORT.sub("", INCLUDE.sub("", source)))
    return [f"namespace {namespace} {{", f'#line 1 "{name}"', text, "}"]


def joined_source(candidates: Sequence[Candidate]) -> str:
    """One translation unit. Messages name lines of the candidates' own files."""
    parts = [*sorted({line for candidate in candidates for line in INCLUDE.findall(candidate.source)}), ""]
    for number, candidate in enumerate(candidates, 1):
        parts += in_namespace(f"candidate_{number}", candidate.path.name, candidate.source)
    parts.append('#line 1 "joined.cu"')
    parts.append("void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {")
    parts.append("  switch (tensor.size(0)) {")
    for number in range(1, len(candidates) + 1):
        parts.append(f"    case {number}: return candidate_{number}::solution(tensor, out, comm);")
    parts += ["  }", "}", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);", ""]
    return "\n".join(parts)


def joined_config(number: int, candidate: Candidate, **requested: object) -> EvalConfig:
    """Chooses the candidate of a number, from 1."""
    chosen = {"device": "emulated", "until": "check", "size": {"M": number, "N": COLUMNS}, "race_check": "auto"}
    return EvalConfig.model_validate(candidate.config.model_dump() | chosen | requested)
