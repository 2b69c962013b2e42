"""Text and lists of shapes reach native kernels and python solutions as declared."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem

NATIVE = {
    "TPMuon": 'std::string name = coefficient_type; if (name != "quintic" && name != "simple" && name != "aol"'
    ' && name != "polar_express") throw std::runtime_error("got " + name);',
    "FSDPStep": "int64_t total = 0; for (auto shape : param_shapes) { int64_t n = 1; for (int64_t d : shape) n *= d;"
    ' total += n; } if (total != 3152 || param_shapes.size() != 4) throw std::runtime_error("shapes");',
}
PYTHON = {
    "TPMuon": "assert args[2] in ('quintic', 'simple', 'aol', 'polar_express'), args[2]; return args[0].clone()",
    "FSDPStep": "assert args[3] == [(64, 32), (64,), (16, 64), (16,)], args[3]; return args[2], args[4], args[5]",
}
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", trials=1)


def kernel(name: str) -> str:
    """A source with the generated signature that looks at its argument and leaves its outputs as they are."""
    declared, export = cpp_signature(find_problem(name)).split("\n\nTVM_FFI")
    head = declared.replace("pkb::Comm comm);", "pkb::Comm comm) {")
    includes = '#include <stdexcept>\n#include <string>\n#include "pkb/symm.h"\n'
    return f"{includes}{head}\n{NATIVE[name]}\n}}\n\nTVM_FFI{export}"


@pytest.mark.parametrize("name", NATIVE)
def test_native_kernel_reads_it(name, local_evaluator: LocalEvaluator):
    feedback = local_evaluator.evaluate(find_problem(name), kernel(name), CONFIG)
    assert feedback.failure == "output_mismatch", feedback.message


@pytest.mark.parametrize("name", PYTHON)
def test_python_solution_reads_it(name, local_evaluator: LocalEvaluator):
    source = f"import torch\n\ndef solution(*args):\n    {PYTHON[name]}\n"
    feedback = local_evaluator.evaluate(find_problem(name), source, CONFIG)
    assert feedback.failure == "output_mismatch", feedback.message
