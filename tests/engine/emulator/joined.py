"""Several candidates in one source: the first dimension of their tensors chooses one, and one compile serves all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pkb_gym.engine
from pkb_gym.engine.records.config import EvalConfig
from tests.engine.candidates import Candidate

TENSOR = r"(?:tvm::ffi::)?TensorView"
SIGNATURE = re.compile(rf"^void solution\({TENSOR} tensor, {TENSOR} out, pkb::Comm comm\)", re.MULTILINE)
EXPORT = re.compile(r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC\(solution, solution\);$", re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
CALL = re.compile(r"\b(cuda[A-Z]\w+)\(")
RUNTIME = Path(pkb_gym.engine.__file__).parent / "emulator" / "src"
COLUMNS = 96


def can_join(candidate: Candidate) -> bool:
    """Whether a candidate is one kernel of two tensors, as those of AllReduce and AllGather are."""
    has_form = SIGNATURE.search(candidate.source) and EXPORT.search(candidate.source)
    return bool(has_form) and candidate.outcome not in ("compile_error", "load_error") and not lacking(candidate.source)


def lacking(source: str) -> set[str]:
    """Functions of the runtime that a source calls and the emulator lacks: with them nothing of a library loads."""
    texts = (path.read_text(encoding="utf-8") for path in RUNTIME.glob("runtime_cuda*.cpp"))
    known = {name for text in texts for name in CALL.findall(text)}
    return {name for name in CALL.findall(source) if not {name, f"{name}C"} & known}  # templates call the name with C


def in_namespaces(sources: Mapping[str, str]) -> list[str]:
    """Lines of one translation unit without `solution` of its own, each source in a namespace: candidate_1, ...

    Args:
        sources: by the name that messages are to give.
    """
    parts = [*sorted({line for source in sources.values() for line in INCLUDE.findall(source)}), ""]
    for number, (name, source) in enumerate(sources.items(), 1):
        body = EXPORT.sub("", INCLUDE.sub("", source))
        parts += [f"namespace candidate_{number} {{", f'#line 1 "{name}"', body, "}"]
    return [*parts, '#line 1 "joined.cu"']


def joined_source(candidates: Sequence[Candidate]) -> str:
    """One translation unit. Messages name lines of the candidates' own files."""
    parts = in_namespaces({candidate.path.name: candidate.source for candidate in candidates})
    parts.append("void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {")
    parts.append("  switch (tensor.size(0)) {")
    for number in range(1, len(candidates) + 1):
        parts.append(f"    case {number}: return candidate_{number}::solution(tensor, out, comm);")
    parts += ["  }", "}", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);", ""]
    return "\n".join(parts)


def joined_config(number: int, candidate: Candidate, **requested: object) -> EvalConfig:
    """Chooses the candidate of a number, from 1."""
    chosen = {"device": "emulated", "until": "check", "size": {"M": number, "N": COLUMNS}}
    return EvalConfig.model_validate(candidate.config.model_dump() | chosen | requested)
