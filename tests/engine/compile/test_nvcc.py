"""CUDA sources: compiled without a GPU, and the compiler's report on each kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.compile import nvcc, sass
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import compile_for_both
from pkb_gym.engine.compile.nvcc import architecture_of, compile_cuda, default_architecture, nvcc_available
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.engine.stages import execution_environment
from pkb_gym.problems.catalogue import find_problem

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 110.0

needs_nvcc = pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap")

KERNELS = """
#include <limits>

#include "pkb/symm.h"

template <int kThreads>
__global__ void reads_peers(const float* x, float* out, int n, pkb::Device comm) {
  const auto element = [=] __device__(int r, int i) { return comm.peer(x, r)[i]; };
  comm.barrier_blocks();
  for (int i = threadIdx.x; i < n; i += kThreads) {
    float sum = 0;
    for (int r = 0; r < comm.world_size; ++r) sum += element(r, i);
    out[i] = n < 0 ? std::numeric_limits<float>::infinity() : sum;
  }
}

namespace {
__global__ void copies_in_bulk(const char* from, char* to, unsigned bytes) {
  __shared__ alignas(128) char staged[4096];
  __shared__ alignas(8) uint64_t arrived;
  const unsigned bar = __cvta_generic_to_shared(&arrived), buffer = __cvta_generic_to_shared(staged);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(buffer), "l"(from), "r"(bytes), "r"(bar) : "memory");
    unsigned done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(bar) : "memory");
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(to), "r"(buffer), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
}  // namespace

__global__ void __launch_bounds__(1024, 2) spills(const float* x, float* out) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) kept[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) out[threadIdx.x + i * 1024] = kept[i] * kept[95 - i];
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* x = static_cast<float*>(tensor.data_ptr());
  auto* y = static_cast<float*>(out.data_ptr());
  reads_peers<256><<<1, 256, 0, comm.cuda_stream()>>>(x, y, int(tensor.numel()), comm.device());
  copies_in_bulk<<<1, 32, 0, comm.cuda_stream()>>>(reinterpret_cast<char*>(x), reinterpret_cast<char*>(y), 4096);
  spills<<<1, 1024, 0, comm.cuda_stream()>>>(x, y);
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
EXPORTS_NOTHING = "__global__ void solution(float* out) { int unused; out[threadIdx.x] = 1; }\n"
BROKEN = "__global__ void solution(float* out) { out[threadIdx.x] = missing; }\n"
UNDEFINED = 'extern "C" int nowhere();\nint solution() { return nowhere(); }\n'


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def kernels(cache: Path) -> Artifact:
    """Compiled once, as each compile takes seconds; as sources are that evaluations on GPUs judge."""
    return compiled(cache)


def compiled(cache: Path) -> Artifact:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpus, "compute_capability", lambda: (9, 0))
        artifact = compile_for_both(KERNELS, CompileCache(cache / "compile"), TIMEOUT_S)
    assert artifact.ok, artifact.log
    return artifact


@needs_nvcc
def test_a_good_source_is_a_library_with_a_report(kernels: Artifact) -> None:
    assert kernels.binary is not None and exports_solution(kernels.binary) and not kernels.cached
    resources = {kernel.name: kernel for kernel in kernels.kernels}
    assert set(resources) >= {"reads_peers<256>", "(anonymous namespace)::copies_in_bulk", "spills"}
    bulk = resources["(anonymous namespace)::copies_in_bulk"]
    assert bulk.shared_bytes >= 4096 + 8 and 0 < bulk.registers < 32
    assert bulk.stack_bytes == bulk.spill_store_bytes == bulk.spill_load_bytes == 0
    assert resources["reads_peers<256>"].barriers == 1
    assert "ptxas info" not in kernels.log


@needs_nvcc
def test_spills_are_reported(kernels: Artifact) -> None:
    (spilling,) = (kernel for kernel in kernels.kernels if kernel.name == "spills")
    assert spilling.registers <= 32
    assert spilling.spill_store_bytes > 0 and spilling.spill_load_bytes > 0
    assert spilling.stack_bytes > 0


@needs_nvcc
def test_transfer_instructions_are_counted(kernels: Artifact) -> None:
    if sass.find_disassembler(nvcc.find_toolkit()) is None:
        pytest.skip("needs cuobjdump and nvdisasm: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    found = {kernel.name: kernel.instructions for kernel in kernels.kernels}
    bulk, spilling = found["(anonymous namespace)::copies_in_bulk"], found["spills"]
    peers, total = found["reads_peers<256>"], kernels.transfers
    assert bulk is not None and spilling is not None and peers is not None and total is not None
    assert (bulk.bulk_copies, bulk.loads, bulk.stores) == (2, 0, 0)
    assert (spilling.loads, spilling.stores) == (96, 96)
    assert spilling.local_loads > 0 and spilling.local_stores > 0
    assert peers.loads >= 1 and peers.stores >= 1 and peers.bulk_copies == 0
    assert peers.system_loads >= 1 and peers.system_stores >= 1, "the signals of barrier_blocks"
    assert total == sum((counts for counts in found.values() if counts), InstructionCounts())


@needs_nvcc
def test_the_second_time_comes_from_the_cache(kernels: Artifact, cache: Path) -> None:
    again = compiled(cache)
    assert again.cached and again.object_file == kernels.object_file is not None
    assert (again.binary, again.kernels, again.transfers) == (kernels.binary, kernels.kernels, kernels.transfers)


@needs_nvcc
def test_a_machine_without_a_gpu_stops_after_compiling(
    kernels: Artifact, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_environment, "can_run", lambda device: False)
    monkeypatch.setattr(gpus, "compute_capability", lambda: None)
    with LocalEvaluator(cache_dir=cache) as evaluator:
        feedback = evaluator.evaluate(find_problem("AllReduce"), KERNELS, EvalConfig(device="cuda"))
    assert (feedback.failure, feedback.stage, feedback.passed) == (Failure.COMPILED_ONLY, Stage.COMPILE, False)
    assert feedback.message == "compiled for sm_90a; this machine has no GPU, so it was not run"
    assert feedback.compile is not None and feedback.compile.cached
    assert feedback.compile.kernels == kernels.kernels and feedback.compile.transfers == kernels.transfers


@needs_nvcc
def test_a_missing_export_is_a_load_error(tmp_path: Path) -> None:
    with LocalEvaluator(cache_dir=tmp_path) as evaluator:
        feedback = evaluator.evaluate(find_problem("AllReduce"), EXPORTS_NOTHING, EvalConfig(device="cuda"))
    assert (feedback.failure, feedback.stage) == (Failure.LOAD_ERROR, Stage.COMPILE), feedback.message
    assert "exports no `solution`" in feedback.message
    assert feedback.compile is not None
    assert [kernel.name for kernel in feedback.compile.kernels] == ["solution"]
    assert "unused" in feedback.compile.log, "warnings stay in the log"


@needs_nvcc
def test_errors_are_reported_and_kept(tmp_path: Path) -> None:
    store = CompileCache(tmp_path)
    artifact = compile_cuda(BROKEN, store, TIMEOUT_S)
    assert not artifact.ok and artifact.binary is None and artifact.kernels == ()
    assert "kernel.cu(1)" in artifact.log and '"missing" is undefined' in artifact.log
    assert compile_cuda(BROKEN, store, TIMEOUT_S).cached


@needs_nvcc
def test_an_undefined_symbol_is_an_error_when_linking(tmp_path: Path) -> None:
    artifact = compile_cuda(UNDEFINED, CompileCache(tmp_path), TIMEOUT_S)
    assert not artifact.ok and "undefined reference to `nowhere'" in artifact.log


@needs_nvcc
@needs_bubblewrap
def test_files_of_the_machine_cannot_be_included(tmp_path: Path) -> None:
    """A macro hides the path from the check of the text; the sandbox does not hold the file."""
    for path in (ROOT / "README.md", find_problem("AllReduce").declared_in):
        source = f"#define FILE <{path}>\n#include FILE\nvoid solution() {{}}\n"
        artifact = compile_cuda(source, CompileCache(tmp_path), TIMEOUT_S)
        assert not artifact.ok and "No such file" in artifact.log, artifact.log


@needs_nvcc
def test_a_compile_that_takes_too_long_is_ended_and_not_kept(tmp_path: Path) -> None:
    artifact = compile_cuda(KERNELS, CompileCache(tmp_path), timeout_s=0.5)
    assert not artifact.ok and "the compiler took longer than 0.5 s" in artifact.log
    assert artifact.duration_s < 30
    assert not list(tmp_path.rglob("*"))


def test_without_nvcc_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "_find_nvcc", lambda: None)
    nvcc.find_toolkit.cache_clear()
    assert not nvcc_available()
    with pytest.raises(InfrastructureError, match="install the CUDA toolkit"):
        compile_cuda(KERNELS, CompileCache(tmp_path), TIMEOUT_S)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'cannot make a temporary file' >&2; exit 1", "status 1.*cannot make a temporary file"),
        ("echo 'another program'", "status 0.*another program"),
        ("exec /nowhere/else", "does not show its toolkit"),
    ],
)
def test_an_nvcc_that_does_not_say_where_it_lies(tmp_path: Path, monkeypatch, script: str, words: str) -> None:
    """Its own folder was taken for the toolkit's, and later failures did not name it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    wrapper = folder / "nvcc"
    wrapper.write_text(f"#!/bin/sh\n{script}\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(nvcc, "_find_nvcc", lambda: str(wrapper))
    with pytest.raises(InfrastructureError, match=words):
        nvcc.find_toolkit.__wrapped__()
    wrapper.write_text("no script")
    with pytest.raises(InfrastructureError, match="does not run"):
        nvcc.find_toolkit.__wrapped__()


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 0), "sm_120a")],
)
def test_the_architecture_follows_from_the_compute_capability(capability: tuple[int, int], architecture: str) -> None:
    assert architecture_of(capability) == architecture


@pytest.mark.parametrize(("capability", "expected"), [(None, "sm_100a"), ((9, 0), "sm_90a")])
def test_the_architecture_of_other_machines_is_for_machines_without_a_gpu(monkeypatch, capability, expected):
    monkeypatch.setattr("pkb_gym.engine.compile.nvcc.gpus.compute_capability", lambda: capability)
    monkeypatch.setenv("PKB_CUDA_ARCHITECTURE", "sm_100a")
    assert default_architecture() == expected
    monkeypatch.delenv("PKB_CUDA_ARCHITECTURE")
    assert default_architecture() == "sm_90a"


@needs_nvcc
def test_a_source_that_calls_itself_as_nvcc_fails_has_a_verdict(tmp_path: Path) -> None:
    """Its errors counted as the machine's: not judged, so that its author chose to have no reward."""
    text = '#line 1 "nvcc fatal   : Unsupported gpu architecture"\n#error of its own\nvoid solution() {}\n'
    artifact = compile_cuda(text, CompileCache(tmp_path), TIMEOUT_S)
    assert not artifact.ok and "#error of its own" in artifact.log


@needs_nvcc
def test_options_that_nvcc_does_not_take_are_no_fault_of_a_source(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="nvcc does not take its options: nvcc fatal"):
        compile_cuda("void solution() {}\n", CompileCache(tmp_path), TIMEOUT_S, flags=["--no-such-option"])
