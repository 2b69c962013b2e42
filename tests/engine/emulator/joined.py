"""Several candidates in one source: the first dimension of their tensors chooses one, and one compile serves all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pkb_gym.engine.records.config import EvalConfig
from tests.engine.candidates import Candidate

TENSOR = r"(?:tvm::ffi::)?TensorView"
SIGNATURE = re.compile(rf"^void solution\({TENSOR} tensor, {TENSOR} out, pkb::Comm comm\)", re.MULTILINE)
EXPORT = re.compile(r"^TVM_FFI_DLL_EXPORT_TYPED_FUNC\(solution, solution\);$", re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)
COLUMNS = 96


def can_join(candidate: Candidate) -> bool:
    """Whether a candidate is one kernel of two tensors, as those of AllReduce and AllGather are."""
    has_form = SIGNATURE.search(candidate.source) and EXPORT.search(candidate.source)
    return bool(has_form) and candidate.outcome not in ("compile_error", "load_error")


def joined_source(candidates: Sequence[Candidate]) -> str:
    """One translation unit. Messages name lines of the candidates' own files."""
    includes = sorted({line for candidate in candidates for line in INCLUDE.findall(candidate.source)})
    parts = [*includes, ""]
    for number, candidate in enumerate(candidates, 1):
        body = EXPORT.sub("", INCLUDE.sub("", candidate.source))
        parts += [f"namespace candidate_{number} {{", f'#line 1 "{candidate.path.name}"', body, "}"]
    parts.append('#line 1 "joined.cu"')
    parts.append("void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {")
    parts.append("  switch (tensor.size(0)) {")
    for number in range(1, len(candidates) + 1):
        parts.append(f"    case {number}: return candidate_{number}::solution(tensor, out, comm);")
    parts += ["  }", "}", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);", ""]
    return "\n".join(parts)


def joined_config(number: int, candidate: Candidate, **asked: object) -> EvalConfig:
    """Chooses the candidate of a number, from 1."""
    chosen = {"device": "emulated", "until": "check", "size": {"M": number, "N": COLUMNS}}
    return EvalConfig.model_validate(candidate.config.model_dump() | chosen | asked)
