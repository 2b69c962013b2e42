"""Extensions of Python sources: what the compile stage builds, what ranks are given, and `compile_cuda_extension`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension as cpp_extension

from pkb_gym.engine.rankside import python
from pkb_gym.engine.rankside.extensions import Recorder, build_what_functions_build, serve

Built = list[dict[str, Any]]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    """What is asked of torch, which builds nothing here."""
    calls: Built = []

    def load_inline(name: str, cpp_sources: Any = None, **kwargs: Any) -> ModuleType:
        if "error" in str(cpp_sources):
            raise RuntimeError(f"Error building extension {name!r}")
        calls.append({"name": name, "cpp_sources": cpp_sources, **kwargs})
        module = ModuleType(name)
        module.__file__ = f"/extensions/{name}/{name}.so"
        return module

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    monkeypatch.setattr(cpp_extension, "load", cpp_extension.load)  # restored after `serve` and `install`
    return calls


@pytest.fixture
def helper() -> Any:
    """`compile_cuda_extension`, loaded from its file: it is on no path here."""
    path = Path(python.SHIMS) / "utils" / "cuda_helpers.py"
    spec = importlib.util.spec_from_file_location("cuda_helpers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compile_cuda_extension


BOUND = 'void f() {}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }'


def test_the_helper_is_on_no_path_of_ours() -> None:
    assert python.SHIMS not in sys.path
    assert importlib.util.find_spec("utils") is None


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((BOUND,), {}),
        ((), {"cuda_src": BOUND}),
        ((), {"cuda_source": BOUND, "verbose": True}),
        ((), {"cuda_sources": [BOUND], "extra_cuda_cflags": ["-lineinfo"]}),
        ((), {"source": BOUND, "extra_include_paths": ["/include"]}),
    ],
)
def test_the_cuda_source_comes_second_or_by_name(helper: Any, built: Built, args: Any, kwargs: Any) -> None:
    module = helper("sums", *args, **kwargs)
    (call,) = built
    assert module.__name__ == call["name"] == "sums"
    assert call["cuda_sources"][0].endswith(BOUND)
    assert call["cuda_sources"][0].startswith("#include <torch/extension.h>")
    assert call["cpp_sources"] == [""] and call["functions"] is None and call["is_python_module"] is True
    assert call["extra_cuda_cflags"] == kwargs.get("extra_cuda_cflags", ["-O3"])
    assert call["extra_include_paths"] == kwargs.get("extra_include_paths", [])


def test_functions_without_declarations_are_bound_in_the_cuda_source(helper: Any, built: Built) -> None:
    helper("sums", "void f() {}", ["f"])
    helper("sums", "void f() {}", functions="f")
    assert built[0] == built[1]
    assert 'm.def("f", &f, "f");' in built[0]["cuda_sources"][0]
    assert built[0]["functions"] is None


def test_functions_that_are_declared_are_bound_by_torch(helper: Any, built: Built) -> None:
    helper("sums", "void f() {}", "void f();", ["f"])
    helper("sums", cuda_src="void f() {}", cpp_src="void f();", functions=["f"])
    assert built[0] == built[1]
    assert built[0]["cpp_sources"] == ["void f();"] and built[0]["functions"] == {"f": "f"}
    assert built[0]["cuda_sources"] == ["void f() {}"]


def test_operators_alone_make_no_module(helper: Any, built: Built) -> None:
    helper("ops", "TORCH_LIBRARY(ops, m) {}")
    assert built[0]["is_python_module"] is False


def test_what_the_helper_refuses_and_ignores(helper: Any, built: Built, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no source"):
        helper("sums")
    with pytest.warns(UserWarning, match="ignores cache_key"):
        helper("sums", BOUND, cache_key=1)
    file = tmp_path / "kernel.cu"
    file.write_text(BOUND)
    helper("sums", str(file))
    assert built[-1] == built[-2]


def test_headers_of_thunderkittens(helper: Any, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUNDERKITTENS_ROOT", "/tk")
    helper("sums", BOUND)
    assert built[0]["extra_include_paths"] == ["/tk/include", "/tk/prototype"]


def test_flags_of_thunderkittens_are_added_where_they_are_missing(
    helper: Any, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    source = f'#include "kittens.cuh"\n{BOUND}'
    helper("sums", source, extra_ldflags=["-lcuda", "-lrt"])
    own = ["-std=c++23", "-DKITTENS_BLACKWELL", "--expt-relaxed-constexpr"]
    helper("sums", source, extra_cuda_cflags=own)
    lambdas, constants = "--expt-extended-lambda", "--expt-relaxed-constexpr"
    assert built[0]["extra_cuda_cflags"] == ["-O3", "-std=c++20", lambdas, constants, "-DKITTENS_HOPPER"]
    assert built[0]["extra_ldflags"] == ["-lrt"], "a driver has no library to link with"
    assert built[1]["extra_cuda_cflags"] == [*own, lambdas]


SOURCE = """
from torch.utils import cpp_extension
from torch.utils.cpp_extension import load_inline

TEXT = "text"
eager = load_inline("eager", TEXT)
_lazy = None

def _build(name):
    return load_inline(name, TEXT)

def _get_lazy():
    global _lazy
    if _lazy is None:
        _lazy = _build("lazy")
    return _lazy

def needs_a_rank(rank):
    local = str(rank)
    return load_inline("unreachable", local)

class Model:
    def __init__(self):
        self.extension = load_inline(name="method", cpp_sources=TEXT)

def solution(tensor):
    inner = load_inline("inner", TEXT)
    return _get_lazy()
"""


def build(source: str) -> tuple[Recorder, list[str], ModuleType]:
    recorder = Recorder()
    recorder.install()
    module = ModuleType("candidate_module")
    exec(source, module.__dict__)
    return recorder, build_what_functions_build(source, module), module


def test_what_functions_would_build_is_built(built: Built) -> None:
    recorder, notes, module = build(SOURCE)
    assert sorted(call["name"] for call in built) == ["eager", "inner", "lazy", "method"]  # each once
    assert {key.partition(":")[0] for key in recorder.libraries} == {"eager", "lazy", "method", "inner"}
    assert module._lazy.__name__ == "lazy"
    assert [note.partition(" was")[0] for note in notes] == ["the build in line 10", "the build in line 20"]


def test_a_function_that_cannot_run_here_is_noted(built: Built) -> None:
    source = "from torch.utils.cpp_extension import load_inline\n\ndef get():\n    1 / 0\n    load_inline('a', 'b')\n"
    _, notes, _ = build(source)
    assert notes == ["get() was not possible when the source was compiled: ZeroDivisionError: division by zero"]


def test_an_extension_that_does_not_compile_is_an_error(built: Built) -> None:
    with pytest.raises(RuntimeError, match="Error building extension 'a'"):
        build("from torch.utils.cpp_extension import load_inline\n\ndef get():\n    load_inline('a', 'error')\n")


def test_ranks_distinguish_builds_of_one_name(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from torch.utils.cpp_extension import load_inline\n\na = load_inline('x', 'a')\nb = load_inline('x', 'b')\n"
    )
    recorder, _, _ = build(source)
    libraries = {key: f"/{number}" for number, key in enumerate(recorder.libraries)}
    assert len(libraries) == 2
    served: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "pkb_gym.engine.rankside.extensions._load_module", lambda name, path: served.append((name, path)) or path
    )
    serve(libraries)
    assert cpp_extension.load_inline("x", "b", verbose=True) == "/1"
    assert cpp_extension.load_inline("x", "a") == cpp_extension.load_inline("x", "a") == "/0"
    assert served == [("x", "/1"), ("x", "/0")]
    assert cpp_extension.load_inline("x_of_rank_1", "b") == "/1", "names that hold the rank are of one extension"
    with pytest.raises(
        RuntimeError, match="extension 'y' was not built when the source was compiled; if that was tried"
    ):
        cpp_extension.load_inline("y", "c")
