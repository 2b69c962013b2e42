"""Starters: every one is a source of its language with the declared signature; some of each kind are evaluated.

`make all` evaluates twice as many as `make test`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import Device, EvalConfig, Language
from pkb_gym.engine.records.source import Source
from pkb_gym.envs.text.python_sources import python_signature
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem, reference_source
from pkb_gym.starters import make_starter
from tests.docs.pages import DOCS
from tests.engine.compiling import cpp_errors, cuda_errors
from tests.engine.joined_libraries import compile_together
from tests.whole_tables import sampled

DEVICES: dict[Language, Device] = {"cpp": "cpu", "cuda": "cuda", "triton": "cuda", "python": "cpu"}

NATIVE = ("SampleSort", "MoELoRAGroupGemmBackward", "UlyssesGatherHeadsScatterSeq", "Conv2dBoundaryExchange")
"""Of a family; overwritten arguments in a group; padding; an argument that may be None."""

PYTHON = ("DDP", "KJTAllToAll", "MoETokenPreprocess", "FusedMoE")
"""Many arguments and results; results whose size the data decide, results in host memory, a process group."""


def in_language(language: Language) -> list[Problem]:
    return [problem for problem in catalogue() if not make_starter(problem, language).why_python]


@pytest.mark.parametrize("problem", sampled(catalogue(), 4), ids=lambda problem: problem.name)
def test_every_starter_is_a_source_of_its_language_with_the_declared_signature(problem: Problem):
    for language, device in DEVICES.items():
        starter = make_starter(problem, language, device)
        assert starter.language == ("python" if starter.why_python else language)
        parsed = Source.parse(starter.source, device)
        uses_triton = device == "cuda" and "import triton" in starter.source
        language = "triton" if uses_triton else starter.language  # a reference may use Triton where there are GPUs
        assert (parsed.defect, parsed.language) == (None, language), "by content"
        mark = "//" if starter.language in ("cpp", "cuda") else "#"
        opening = starter.source.split(f"\n{mark} Where to go next:\n")[0].splitlines()
        assert opening[0].startswith(f"{mark} {problem.name}: ") and all(line.startswith(mark) for line in opening)
        if mark == "//":
            declared = cpp_signature(problem).split("(\n", 1)[1].split("pkb::Comm comm")[0]
            assert declared in starter.source and starter.source.count("solution(\n") == 1
            assert starter.source.endswith("TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);\n")
        else:
            assert python_signature(starter.source) == python_signature(reference_source(problem))


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 2), ids=lambda problem: problem.name)
def test_a_python_starter_has_the_steps_of_the_reference_and_hints_of_its_device(problem: Problem):
    on_cpu, on_gpu = (make_starter(problem, "python", device).source for device in ("cpu", "cuda"))
    reference = reference_source(problem)
    assert on_cpu.endswith(reference) and on_gpu.endswith(reference)
    assert "load_inline" in on_gpu.removesuffix(reference) and "load_inline" not in on_cpu.removesuffix(reference)


@pytest.mark.parametrize("language", ["cpp", "cuda"])
def test_native_starters_are_no_experts_and_keep_the_call_contract(language: Language):
    found = in_language(language)
    assert len(found) == {"cpp": 50, "cuda": 59}[language]
    for problem in found:
        source = make_starter(problem, language).source
        expert = expert_source(problem, "cpp" if language == "cpp" else "cu") or ""
        kernels = set(re.findall(r"^(?:__global__ )?void \w*\([^)]*\) \{.*?^\}", expert, re.MULTILINE | re.DOTALL))
        assert not any(kernel in source for kernel in kernels), problem.name
        assert len(re.findall(r"barrier|comm\.wait|meet\(", source)) >= 2, f"{problem.name}: no entry or no exit"


def test_the_page_counts_the_starters():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"| {len(in_language('cpp'))} and {len(in_language('cuda'))} |" in page
    assert f"| {', '.join(problem.name for problem in in_language('triton'))} |" in page


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    sources = [make_starter(find_problem(name), "cpp").source for name in (*sampled(NATIVE, 2), "HyenaCP")]
    compile_together(sources, CompileCache.in_folder(compiled_before))


@pytest.mark.parametrize(
    ("name", "language"), [(n, "cpp") for n in sampled(NATIVE, 2)] + [(n, "python") for n in sampled(PYTHON, 2)]
)
def test_starters_are_right(name: str, language: Language, compiled: None, local_evaluator: LocalEvaluator):
    problem = find_problem(name)
    config = EvalConfig(device="cpu", language=language, world_size=2, size="tiny", until="check", timeout_s=20)
    source = make_starter(problem, language).source
    assert language != "cpp" or cpp_errors(source) == ""
    feedback = local_evaluator.evaluate(problem, source, config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}"


@pytest.mark.usefixtures("compiled")
def test_a_naive_long_convolution_takes_filters_longer_than_the_sequence(local_evaluator: LocalEvaluator):
    axes = {"B": 1, "num_groups": 4, "group_dim": 1, "l": 48, "Lf": 96, "with_zigzag_splitting": True}
    problem = find_problem("HyenaCP")
    config = EvalConfig(device="cpu", world_size=1, size=axes, until="check")
    source = make_starter(problem, "cpp").source
    assert cpp_errors(source) == ""
    feedback = local_evaluator.evaluate(problem, source, config)
    assert feedback.is_correct, feedback.message


@pytest.mark.usefixtures("compiled")
def test_a_naive_kernel_of_another_dtype_is_refused_not_wrong(local_evaluator: LocalEvaluator):
    """Some families read bfloat16 alone, whatever a kernel is given."""
    problem = find_problem("SampleSort")
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", dtype="float32")
    feedback = local_evaluator.evaluate(problem, make_starter(problem, "cpp").source, config)
    assert feedback.failure == "runtime_error" and "expected bfloat16, got float32" in feedback.message


@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
def test_a_cuda_starter_compiles(tmp_path: Path):
    source = tmp_path / "starter.cu"
    source.write_text(make_starter(find_problem("MoELoRAGroupGemmBackward"), "cuda").source)
    assert cuda_errors(source, tmp_path) == ""
