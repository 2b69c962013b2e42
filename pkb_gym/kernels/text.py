"""Templates of kernels: places that are filled in, and the headers that the finished text needs."""

from __future__ import annotations

import re
import textwrap
from string import Template
from typing import Literal, TypeAlias

NativeLanguage: TypeAlias = Literal["cpp", "cuda"]

EXPORT = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);"


def fill(template: str, **pieces: str | int) -> str:
    r"""Returns a text with its places filled in.

    A place is `$name`, and a piece may have places too. A place that has a line for itself takes several lines, at its
    indentation, or, where there is nothing to put there, the line goes.

    Args:
        template: Text with places, at any indentation.
        **pieces: Text for each place.

    Raises:
        KeyError: A place within a line has no piece.

    Example:
        >>> print(fill("if (x) {\n  $body\n  $rest\n}", body="a();\n$b", b="b();", rest=""))
        if (x) {
          a();
          b();
        }
    """
    lines: list[str] = []
    for line in textwrap.dedent(template).strip("\n").split("\n"):
        indent, name = line[: len(line) - len(line.lstrip())], line.strip()
        if name.startswith("$") and name[1:] in pieces:
            piece = fill(str(pieces[name[1:]]), **pieces)
            lines += [indent + part if part else part for part in piece.split("\n")] if piece else []
            continue
        while "$" in line:
            line = Template(line).substitute(pieces)
        lines.append(line)
    return "\n".join(lines)


def finish(source: str) -> str:
    """Returns a source without superfluous blank lines and with a line end.

    Superfluous are blank lines at the beginning, two in a row, and those before a closing brace.
    """
    kept: list[str] = []
    for line in source.rstrip().split("\n"):
        if not line and (not kept or not kept[-1]):
            continue
        if line.strip().startswith("}") and kept and not kept[-1]:
            kept.pop()
        kept.append(line)
    return "\n".join(kept) + "\n"


_CPP_SIGNS = {
    "algorithm": ("std::min", "std::max", "std::fill", "std::stable_sort", "std::sort", "std::copy"),
    "cmath": ("std::sqrt", "std::abs(", "std::nearbyint", "std::pow", "std::exp(", "std::log("),
    "cstring": ("std::memcpy", "std::memset"),
    "functional": ("std::greater",),
    "limits": ("std::numeric_limits",),
    "thread": ("std::thread",),
    "utility": ("std::pair",),
    "vector": ("std::vector",),
}

_CUDA_SIGNS = {
    "gemm_simt": ("pkb::gemm::launch_simt",),
    "gemm_sm90": ("pkb::gemm::launch<",),
    "launch_cuda": ("pkb::with_type", "pkb::multiprocessors"),
    "tagged_cuda": ("_tagged(",),
    "teams_cuda": ("pkb::reduce_", "pkb::count_in_block"),
    "transfer_cuda": (
        *("pkb::copy", "pkb::Move", "pkb::add_up", "pkb::with_float_type", "pkb::Accumulator", "pkb::load_packet"),
    ),
}


def complete(text: str, language: NativeLanguage) -> str:
    """Returns a kernel as a translation unit: with the headers that it needs, and `solution` exported."""
    if language == "cpp":
        standard = _signed(_CPP_SIGNS, text)
        ours = [name for name, sign in (("bf16", "pkb::bf16"), ("fp16", "pkb::fp16")) if sign in text]
    else:
        standard = [name for name, sign in (("algorithm", "std::min"), ("cmath", "std::pow")) if sign in text]
        types = (("cuda_bf16.h", "__nv_bfloat16"), ("cuda_fp16.h", "__half"))
        standard += [name for name, sign in types if sign in text]
        ours = _signed(_CUDA_SIGNS, text)
    above = [f"#include <{name}>" for name in sorted(standard)]
    below = [f'#include "pkb/{name}.h"' for name in sorted([*ours, "symm"])]
    using = [] if "using tvm::ffi::TensorView;" in text else ["using tvm::ffi::TensorView;", ""]
    return finish("\n".join([*above, "", *below, "", *using, _without_unused_world_size(text), "", EXPORT]))


def _signed(signs: dict[str, tuple[str, ...]], text: str) -> list[str]:
    return [name for name, texts in signs.items() if any(sign in text for sign in texts)]


def _without_unused_world_size(text: str) -> str:
    """Functions that never use W need not name it."""
    functions = text.split("\n}\n")
    for k, function in enumerate(functions):
        rest = function.replace("const int W = comm.world_size;", "")
        if rest != function and not re.search(r"\bW\b", rest):
            functions[k] = function.replace("\n  const int W = comm.world_size;", "")
    return "\n}\n".join(functions)
