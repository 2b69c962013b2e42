"""Naive native kernels whose elements are computed one by one: one loop on the CPU, one grid of threads on GPUs.

The text is the same in both languages but for the loop, the launch and the element types.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from pkb_gym.engine.problem import Output, Problem, Tensor
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.kernels.text import EXPORT, NativeLanguage, fill, finish

WIDTH = 120
"""Columns of a generated line."""

MEET = """\
comm.barrier($group);  // every rank's call has begun: its arguments may be read"""
STAGED_MEET = """\
comm.barrier($group);  // every rank has staged its arguments: its scratch may be read"""
PART = """\
comm.barrier($group);  // every rank has read: this call may end"""


@dataclass(frozen=True)
class Step:
    """One function of a kernel, called once for each of `calls`.

    Attributes:
        name: Name of the function.
        reads: Names of its pointers to inputs.
        writes: Names of its pointers to results, which follow those to inputs.
        body: Text for element `i`, where `T` is the element type and `Sum<T>` the type of sums.
        calls: Its calls: the argument, output or host expression of each pointer, and the number of elements.
        values: (type, name, expression of the host) of its further parameters.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: str
    calls: tuple[tuple[Mapping[str, str], str], ...]
    values: tuple[tuple[str, str, str], ...] = ()

    @property
    def pointers(self) -> tuple[str, ...]:
        """All of them, in order."""
        return self.reads + self.writes


def number(name: str, expression: str) -> tuple[str, str, str]:
    """A whole number among `Step.values`."""
    return "int64_t", name, expression


def named(*names: str, **others: str) -> dict[str, str]:
    """Tensors of a call, by the names of a step: those of the same name, and others."""
    return {name: name for name in names} | others


@dataclass(frozen=True)
class ElementKernel:
    """A kernel between two barriers.

    Attributes:
        problem: Name of the problem.
        idea: Sentence without a full stop about the way to the result.
        steps: Functions that are called between the barriers.
        dtype_of: Argument whose dtype all floating tensors have.
        setup: Lines of the host that do not need the element type `T`.
        typed_setup: Lines of the host that need the element type `T`.
        workspace: (name, number of elements) of this rank's own memory for intermediate results.
        workspace_type: Type of the elements in `workspace`, `T` or `Sum<T>`.
        staging: Lines of the host that copy arguments to scratch, from which peers then read; may use `T`.
        declarations: Types that the functions use.
        group: Group argument of the barriers; empty for all ranks.
    """

    problem: str
    idea: str
    steps: tuple[Step, ...]
    dtype_of: str
    setup: str = ""
    typed_setup: str = ""
    workspace: tuple[tuple[str, str], ...] = ()
    workspace_type: str = "T"
    staging: str = ""
    declarations: str = ""
    group: str = ""


CPP_TYPES = {
    "bfloat16": ("pkb::bf16", "kDLBfloat, 16"),
    "float16": ("pkb::fp16", "kDLFloat, 16"),
    "float32": ("float", "kDLFloat, 32"),
    "float64": ("double", "kDLFloat, 64"),
}
"""dtype -> (element type, code and bits) on the CPU."""

CUDA_TYPES = {"bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float", "float64": "double"}
"""dtype -> element type on GPUs."""

SUM = """
// The type that sums of T are made in.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
"""

CPP = """
$includes

$sum

$declarations

$functions

$head
  $setup
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    $typed_setup
    $workspace
    $staging
    $meet
    $calls
    $part
  };
  const DLDataType type = $dtype_of.dtype();
  $dispatch
  TVM_FFI_THROW(TypeError) << "expected $dtypes, got " << type;
}

$export
"""

CPP_FUNCTION = """
template <class T>
$head
  for (int64_t i = 0; i < count; ++i) {
    $body
  }
}
"""

CUDA = """
$includes

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

// One thread an element, as far as that goes; a rank without elements meets the others all the same.
unsigned blocks_of(int64_t count) {
  return unsigned(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

$sum

$declarations

$functions

$head
  $setup
  pkb::with_type<$types>($dtype_of.dtype(), [&](auto zero) {
    using T = decltype(zero);
    $typed_setup
    $workspace
    $staging
    $meet
    $calls
    $part
  });
}

$export
"""

CUDA_FUNCTION = """
template <class T>
$head
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += step) {
    $body
  }
}
"""


def element_source(kernel: ElementKernel, problem: Problem, language: NativeLanguage) -> str:
    """The text of a kernel, with the element types that the problem's dtypes are.

    Args:
        kernel: Kernel to render.
        problem: Problem that it solves.
        language: "cpp" or "cuda".
    """
    cuda = language == "cuda"
    functions = [_function(step, cuda=cuda) for step in kernel.steps]
    calls = [_call(step, call, count, problem, cuda=cuda) for step in kernel.steps for call, count in step.calls]
    body = "\n".join(functions)
    shared = {
        "sum": SUM if "Sum<T>" in body else "",
        "declarations": kernel.declarations,
        "functions": "\n\n".join(functions),
        "head": definition_head(problem),
        "setup": kernel.setup,
        "typed_setup": kernel.typed_setup,
        "workspace": _workspace(kernel, cuda=cuda),
        "staging": kernel.staging,
        "meet": fill(STAGED_MEET if kernel.staging else MEET, group=kernel.group),
        "calls": "\n".join(calls),
        "part": fill(PART, group=kernel.group),
        "dtype_of": kernel.dtype_of,
        "export": EXPORT,
    }
    if cuda:
        types = [CUDA_TYPES[dtype] for dtype in problem.dtypes]
        includes = _includes(
            ["algorithm", *(["type_traits"] if shared["sum"] else [])],
            [f"cuda_{name}.h" for name, sign in (("bf16", "__nv_bfloat16"), ("fp16", "__half")) if sign in types],
            ["launch_cuda", "symm"],
        )
        return finish(fill(CUDA, includes=includes, types=", ".join(types), **shared))
    dispatch = [
        f"if (type == DLDataType{{{code}, 1}}) return run({name}());"
        for name, code in (CPP_TYPES[dtype] for dtype in problem.dtypes)
    ]
    halves = [name for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")) if dtype in problem.dtypes]
    standard = [
        *(["cmath"] if re.search(r"\b(?:sqrt|exp|log)\(", body) else []),
        *(["type_traits"] if shared["sum"] else []),
        *(["vector"] if kernel.workspace else []),
    ]
    return finish(
        fill(
            CPP,
            includes=_includes(standard, [], [*halves, "symm"]),
            dispatch="\n".join(dispatch),
            dtypes=" or ".join(problem.dtypes),
            **shared,
        )
    )


def _workspace(kernel: ElementKernel, *, cuda: bool) -> str:
    """One allocation, in which the parts follow each other; on GPUs it is kept from call to call."""
    if not kernel.workspace:
        return ""
    kind, total = kernel.workspace_type, " + ".join(elements for _, elements in kernel.workspace)
    (name, elements), *rest = kernel.workspace
    if cuda:
        lines = [f"{kind}* const {name} = pkb::kept_memory<{kind}>({total});"]
    else:
        lines = [f"std::vector<{kind}> memory({total});", f"{kind}* const {name} = memory.data();"]
    for following, length in rest:
        lines.append(f"{kind}* const {following} = {name} + {elements};")
        name, elements = following, length
    return "\n".join(lines)


def definition_head(problem: Problem) -> str:
    """The first lines of the definition of `solution`, as `cpp_signature` declares it."""
    declared = cpp_signature(problem).split("\n\nTVM_FFI")[0]
    return declared.replace("pkb::Comm comm); ", "pkb::Comm comm) {")


def _includes(standard: list[str], types: list[str], ours: list[str]) -> str:
    above = [f"#include <{name}>" for name in types]
    below = [f"#include <{name}>" for name in standard]
    last = [f'#include "pkb/{name}.h"' for name in ours]
    return "\n".join([*above, *([""] if above else []), *below, *([""] if below else []), *last])


def _function(step: Step, *, cuda: bool) -> str:
    pointers = [f"{'' if name in step.writes else 'const '}T* {name}" for name in step.pointers]
    values = [f"{kind} {name}" for kind, name, _ in step.values]
    comm = "pkb::Device comm" if cuda else "const pkb::Comm& comm"
    head = f"{'__global__ void' if cuda else 'void'} {step.name}("
    return fill(
        CUDA_FUNCTION if cuda else CPP_FUNCTION,
        head=_listed(head, [*pointers, *values, "int64_t count", comm], ") {"),
        body=step.body,
    )


def _call(step: Step, call: Mapping[str, str], count: str, problem: Problem, *, cuda: bool) -> str:
    pointers = [_pointer(call[name], problem, constant=name in step.reads) for name in step.pointers]
    values = [value for _, _, value in step.values]
    if not cuda:
        return _listed(f"{step.name}<T>(", [*pointers, *values, count, "comm"], ");", indent=4)
    launch = f"{step.name}<T><<<blocks_of({count}), kThreads, 0, comm.cuda_stream()>>>("
    return f"{_listed(launch, [*pointers, *values, count, 'comm.device()'], ');', indent=4)}\nPKB_CUDA_LAUNCHED();"


def _pointer(name: str, problem: Problem, *, constant: bool) -> str:
    """A tensor's data; whatever is no tensor of the problem is an expression already."""
    kind = "const T*" if constant else "T*"
    for arg in (*problem.args, *problem.returned):
        if arg.name == name and isinstance(arg, Tensor | Output):
            if isinstance(arg, Tensor) and arg.optional:
                return f"{name}.has_value() ? static_cast<{kind}>({name}.value().data_ptr()) : nullptr"
            return f"static_cast<{kind}>({name}.data_ptr())"
    return name


def _listed(before: str, items: list[str], after: str, indent: int = 0) -> str:
    """A list in brackets, broken where a line at that indentation would be too long."""
    if len(whole := before + ", ".join(items) + after) <= WIDTH - indent:
        return whole
    pieces = [f"{item}," for item in items[:-1]] + [items[-1] + after]
    lines = [""]
    for piece in pieces:
        if len(lines[-1]) + len(piece) + 5 > WIDTH - indent:
            lines.append("")
        lines[-1] = f"{lines[-1]} {piece}".lstrip()
    return "\n".join([before, *textwrap.indent("\n".join(lines), "    ").split("\n")])
