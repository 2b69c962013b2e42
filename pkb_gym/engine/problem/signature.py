"""The C++ signature of a problem's native kernels, generated from its declaration."""

from __future__ import annotations

from pkb_gym.engine.problem.arguments import (
    Group,
    Linear,
    Output,
    OutputList,
    Scalar,
    Sparse,
    Tensor,
    TensorList,
)
from pkb_gym.engine.problem.problem import Problem

_SCALARS = {
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "tvm::ffi::String",
    "ints": "tvm::ffi::Array<int64_t>",
    "shapes": "tvm::ffi::Array<tvm::ffi::Array<int64_t>>",
}
_VIEW = "tvm::ffi::TensorView"

EXPORTED = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);"
"""The line that exports `solution`."""


def cpp_signature(problem: Problem) -> str:
    """The function that a native source must export as `solution`, one parameter a line, with comments.

    Arguments come in declared order, then the preallocated outputs, then the communicator; outputs whose size depends
    on the data are returned.
    """
    lines: list[tuple[str, str]] = []
    for arg in problem.args:
        lines += _parameters(arg)
    for out in problem.returned:
        if isinstance(out, OutputList):
            lines.append((f"tvm::ffi::Array<tvm::ffi::Tensor> {out.name}", f"output: {out.about or 'list'}"))
        elif not out.is_returned:
            kind = f"tvm::ffi::Optional<{_VIEW}>" if out.when else _VIEW
            lines.append((f"{kind} {out.name}", f"output, {_shape(out.shape)} {out.dtype or 'floating'}"))
    lines.append(("pkb::Comm comm", "ranks, peers' memory, signals: see pkb/symm.h"))
    width = max(len(text) for text, _ in lines) + 2
    ends = [","] * (len(lines) - 1) + [");"]
    body = "\n".join(f"    {text + end:<{width}}  // {note}" for (text, note), end in zip(lines, ends, strict=True))
    return f"{_result(problem)} solution(\n{body}\n\n{EXPORTED}\n"


def plain_cpp_signature(problem: Problem) -> str:
    """The declaration of `cpp_signature` on one line, without its comments and the export."""
    lines = cpp_signature(problem).removesuffix(f"\n\n{EXPORTED}\n").splitlines()
    code = " ".join(line.split("//")[0].strip() for line in lines if not line.startswith("//"))
    return code.replace("( ", "(")


def _parameters(arg: Tensor | TensorList | Linear | Sparse | Scalar | Group) -> list[tuple[str, str]]:
    if isinstance(arg, Scalar):
        kind = _SCALARS[arg.kind]
        return [(f"{f'tvm::ffi::Optional<{kind}>' if arg.optional else kind} {arg.name}", arg.about or "scalar")]
    if isinstance(arg, Group):
        return [(f"int64_t {arg.name}", f"{arg.about or 'process group'}: comm.group({arg.name}); -1 is None")]
    if isinstance(arg, Linear):
        weight = (f"{_VIEW} {arg.name}_weight", f"{_shape(arg.shape)}; {arg.about or 'linear layer'}")
        bias = f"{_VIEW} {arg.name}_bias" if arg.bias else f"tvm::ffi::Optional<{_VIEW}> {arg.name}_bias"
        return [weight, (bias, f"({arg.shape[0]},)" if arg.bias else "always None")]
    dtype = arg.dtype or "floating"
    if isinstance(arg, Sparse):
        note = f"({len(arg.shape)}, {arg.nnz}) int64, coalesced COO of {_shape(arg.shape)}; {arg.about}".rstrip("; ")
        return [(f"{_VIEW} {arg.name}_indices", note), (f"{_VIEW} {arg.name}_values", f"({arg.nnz},) {dtype}")]
    if isinstance(arg, TensorList):
        element = "tvm::ffi::Optional<tvm::ffi::Tensor>" if arg.may_hold_none else "tvm::ffi::Tensor"
        note = f"list, {dtype}{', overwritten' if arg.mutable else ''}; {arg.about}"
        return [(f"tvm::ffi::Array<{element}> {arg.name}", note.rstrip("; "))]
    kind = f"tvm::ffi::Optional<{_VIEW}>" if arg.optional else _VIEW
    note = f"{_shape(arg.shape)} {dtype}{', overwritten' if arg.mutable else ''}; {arg.about}"
    return [(f"{kind} {arg.name}", note.rstrip("; "))]


def _result(problem: Problem) -> str:
    returned = [out for out in problem.returned if isinstance(out, Output) and out.is_returned]
    if not returned:
        return "void"
    names = ", ".join(f"{out.name} {_shape(out.shape)}" for out in returned)
    kind = "tvm::ffi::Tensor" if len(returned) == 1 else "tvm::ffi::Array<tvm::ffi::Tensor>"
    return f"// returns {names}\n{kind}"


def _shape(shape: tuple[str | int, ...] | str) -> str:
    return shape if isinstance(shape, str) else f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
