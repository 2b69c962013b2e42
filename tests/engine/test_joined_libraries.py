"""Sources that are compiled together behave as each does alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.gxx import compile_cpp
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from tests.engine.joined_libraries import can_join, compile_together

ENDS = """
#include "pkb/symm.h"
int calls = 0;
void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  throw std::runtime_error("%s, call " + std::to_string(calls++));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


def test_each_is_its_own(local_evaluator: LocalEvaluator, compiled_before: Path) -> None:
    """Names may be the same in all; what ends a call is at a line of the source itself."""
    words = ("the first ends", "the second ends", "the third ends")
    cache = CompileCache.in_folder(compiled_before)
    compile_together([ENDS % each for each in words], cache)
    for each in words:
        assert compile_cpp(ENDS % each, cache, timeout_s=0.001).ok, "it is not compiled again"
    config = EvalConfig(device="cpu", world_size=1, size="tiny", until="check")
    for each in words[1:]:
        feedback = local_evaluator.evaluate(find_problem("AllReduce"), ENDS % each, config)
        assert f"{each}, call 0" in feedback.message and "kernel.cpp:5" in feedback.message, feedback.message


@pytest.mark.parametrize(
    "line",
    [
        "#define float double",
        "#pragma GCC optimize(0)",
        'extern "C" int puts(const char*) { return 0; }',
        "__attribute__((constructor)) void load() {}",
        "const bool loaded = [] { return true; }();",
        "namespace std { int x; }",
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, again);",
    ],
)
def test_what_others_would_notice_is_compiled_alone(line: str) -> None:
    assert can_join(ENDS % "")
    assert not can_join(ENDS.replace("int calls", f"{line}\nint calls") % "")


def test_one_source_is_left_to_its_evaluation(tmp_path: Path) -> None:
    compile_together([ENDS % ""], CompileCache(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
