"""`compile_cuda_extension`, as solutions written for ParallelKernelBench call it; torch's `load_inline` does the work.

Signatures differ between such solutions, so this one is liberal: the CUDA source comes second or by any usual keyword,
bindings are in the source (PYBIND11_MODULE, TORCH_LIBRARY) or are named in `functions`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pkb_gym.engine.rankside import thunderkittens

Code: TypeAlias = str | Sequence[str]
Functions: TypeAlias = str | Sequence[str] | Mapping[str, str]

CUDA_KEYWORDS = ("cuda_source", "cuda_src", "cuda_sources", "cuda_code", "source", "src", "sources", "code")
CPP_KEYWORDS = ("cpp_source", "cpp_src", "cpp_sources", "cpp_code")
PASSED_ON = ("extra_cflags", "extra_ldflags", "build_directory", "with_pytorch_error_handling", "no_implicit_headers")
HEADERS = "#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"
HEADERS_TO_BIND = "#include <torch/extension.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n"


def compile_cuda_extension(
    name: str,
    *sources: Code | Functions,
    functions: Functions | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    verbose: bool = False,
    **others: Any,
) -> Any:
    """Builds an extension from CUDA source, and loads it.

    Args:
        name: Name of the extension.
        sources: CUDA source (text, or the path of a .cu file), then C++ source or names of functions to bind.
        functions: Names of functions to bind, or a mapping from names to docstrings. Where there is no C++ source that
            declares them, the CUDA source defines them.
        extra_cuda_cflags: Flags for nvcc; -O3 by default. A source that names kittens.cuh is compiled as C++20, with
            the macro of the GPU's architecture, as far as flags do not say otherwise, and finds the driver's functions.
        extra_include_paths: Folders of headers; those of THUNDERKITTENS_ROOT are added.
        verbose: Whether the build is shown.
        others: Sources by keyword (`CUDA_KEYWORDS`, `CPP_KEYWORDS`), and further options of `load_inline`
            (`PASSED_ON`).

    Returns:
        The module; the path of the library where the source registers operators (TORCH_LIBRARY) and binds nothing.

    Raises:
        TypeError: there is no source.
    """
    from torch.utils import cpp_extension

    cuda, cpp, named = _sort_out(sources, others)
    functions = functions if functions is not None else named
    if not cuda and not cpp:
        raise TypeError(f"compile_cuda_extension({name!r}): no source; pass it second, or as cuda_source=...")
    options = {key: others.pop(key) for key in PASSED_ON if others.get(key) is not None}
    if others:
        warnings.warn(f"compile_cuda_extension({name!r}) ignores {', '.join(sorted(others))}", stacklevel=2)
    if functions is not None and not cpp:
        cuda, functions = f"{cuda}\n{_bindings(functions)}", None
    binds = functions is not None or "PYBIND11_MODULE" in cuda + cpp
    cflags = ["-O3"] if extra_cuda_cflags is None else list(extra_cuda_cflags)
    if "kittens.cuh" in cuda:
        cflags += _kittens_cflags(cuda, cflags)
        options["extra_ldflags"] = [flag for flag in options.get("extra_ldflags", ()) if flag != "-lcuda"]
        _share_driver()
    if not cpp:  # then the C++ file stays empty, instead of spending half a minute on torch's headers
        options["no_implicit_headers"] = True
        cuda = f"{HEADERS_TO_BIND if binds else HEADERS}{cuda}"
    return cpp_extension.load_inline(  # type: ignore[no-untyped-call]  # torch leaves it without annotations
        name=name,
        cpp_sources=[cpp],
        cuda_sources=[cuda] if cuda else None,
        functions=None if functions is None else _docstrings(functions),
        extra_cuda_cflags=cflags,
        extra_include_paths=[*(extra_include_paths or ()), *_thunderkittens()],
        is_python_module=binds,
        verbose=verbose,
        **options,
    )


def _sort_out(sources: Sequence[Any], others: dict[str, Any]) -> tuple[str, str, Functions | None]:
    """CUDA source, C++ source and functions, however they were passed; takes the former out of `others`."""
    texts: list[str] = []
    functions: Functions | None = None
    for place, source in enumerate(sources):
        if place > 0 and _names_functions(source):
            functions = source
        elif source is not None:
            texts.append(_text(source))
    by_keyword = [
        [_text(others.pop(key)) for key in keywords if others.get(key) is not None]
        for keywords in (CUDA_KEYWORDS, CPP_KEYWORDS)
    ]
    cuda = "\n".join(texts[:1] + by_keyword[0])
    cpp = "\n".join(texts[1:] + by_keyword[1])
    return cuda, cpp, functions


def _names_functions(source: Any) -> bool:
    names = [source] if isinstance(source, str) else source
    if isinstance(names, Mapping):
        return True
    return isinstance(names, Sequence) and all(isinstance(name, str) and name.isidentifier() for name in names)


def _text(source: Any) -> str:
    if isinstance(source, Path) or (isinstance(source, str) and source.endswith((".cu", ".cuh", ".cpp"))):
        return Path(source).read_text(encoding="utf-8")
    return source if isinstance(source, str) else "\n".join(_text(part) for part in source)


def _docstrings(functions: Functions) -> dict[str, str]:
    if isinstance(functions, Mapping):
        return dict(functions)
    return {name: name for name in ([functions] if isinstance(functions, str) else functions)}


def _bindings(functions: Functions) -> str:
    lines = "".join(f'  m.def("{name}", &{name}, "{about}");\n' for name, about in _docstrings(functions).items())
    return f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{lines}}}"


def _thunderkittens() -> list[str]:
    root = os.environ.get("THUNDERKITTENS_ROOT")
    return [os.path.join(root, "include"), os.path.join(root, "prototype")] if root else []


def _kittens_cflags(cuda: str, cflags: Sequence[str]) -> list[str]:
    """The flags that ThunderKittens needs beside those that are there; the same in the build and on ranks."""
    import torch

    added = [] if any(flag.startswith("-std=") for flag in cflags) else ["-std=c++20"]
    added += [flag for flag in ("--expt-extended-lambda", "--expt-relaxed-constexpr") if flag not in cflags]
    macro = thunderkittens.MACROS.get("sm_{}{}".format(*torch.cuda.get_device_capability()))
    if macro and not re.search(r"define\s+KITTENS_|-DKITTENS_", "\n".join([cuda, *cflags])):
        added.append(f"-D{macro}")
    return added


def _share_driver() -> None:
    """Lets extensions that are loaded later find the driver's functions: drivers come without a library to link with.

    What is built on a machine without a driver cannot be loaded there anyway.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
