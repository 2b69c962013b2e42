"""The command `check-ranks`, from its options to what it prints and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_emulator.checking.command import main

USAGE = {
    "a kernel that is not there": (["missing.cu"], "missing.cu: no such file"),
    "an option that is not there": (["k.cu", "--rank", "2"], "unknown option --rank"),
    "no number of ranks": (["k.cu", "--ranks", "two"], "--ranks: expected a number, or several with commas, got 'two'"),
    "too many ranks": (["k.cu", "--ranks", "17"], "the number of ranks must be 1 to 16, got 17"),
    "no such schedule": (
        ["k.cu", "--schedule", "fast:1"],
        "--schedule: expected POLICY:SEED with a policy of together",
    ),
    "two calls": (["k.cu", "--entry", "f", "--call", "f()"], "--entry is short for a --call; give one of them"),
    "a reference of main": (["k.cu", "--reference", "ref.py"], "a reference needs declared buffers"),
    "buffers of main": (["k.cu", "--args", "x:f32[4]"], "a program with main allocates by itself"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_says_what_was_expected(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.cu").write_text("int main() { return 0; }\n")
    Path("ref.py").write_text("def reference(): return {}\n")
    words, expected = USAGE[case]
    assert main([*words, "--emulator", "/nowhere.so"]) == 2
    printed = capsys.readouterr()
    assert expected in printed.err and printed.out == ""


def test_help_shows_examples_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "exit status: 0 no problem, 1 problems found, 2 wrong usage" in shown and "check-ranks test.cu" in shown


@pytest.fixture
def path(emulator_path: Path | None) -> str:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return str(emulator_path)


def test_a_program_that_does_not_compile_is_shown_as_nvcc_says(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "k.cu"
    source.write_text("#include <nccl_device.h>\n__global__ void f(ncclWindow_t w) { ncclGetFarPointer(w, 0); }\n")
    assert main([str(source), "--emulator", path]) == 2
    shown = capsys.readouterr().err
    assert "nvcc refuses the program" in shown and 'identifier "ncclGetFarPointer" is undefined' in shown
    assert "not among the functions that the emulator models (see its README): ncclGetFarPointer" in shown


def test_a_source_without_main_and_call_says_what_to_add(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "k.cu"
    source.write_text("int f() { return 0; }\n")
    assert main([str(source), "--emulator", path]) == 2
    assert 'k.cu has no main; say what each rank calls, for example --args "x:f32' in capsys.readouterr().err


KERNEL = """
#include "shared.h"
int prepared = 0;
__global__ void add(const float* x, float* const* out, int rank, int size, unsigned* total) {
  for (int peer = 0; peer < size; ++peer) atomicAdd_system(out[peer] + threadIdx.x, x[threadIdx.x]);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd_system(total, 1u);
}
int prepare() { return ++prepared == 1 ? 0 : 9; }
template <int N> int sum(const float* x, float* const* out, int rank, unsigned* total, cudaStream_t stream) {
  static_assert(N == WORLD);
  if (prepared != 1) return 5;
  add<<<1, 64, 0, stream>>>(x, out, rank, N, total);
  return scale(stream);
}
template int sum<WORLD>(const float*, float* const*, int, unsigned*, cudaStream_t);
"""
SHARED = """
#include <cuda_runtime.h>
int prepare();
int scale(cudaStream_t stream);
template <int N> int sum(const float* x, float* const* out, int rank, unsigned* total, cudaStream_t stream);
"""
OTHER = """
#include "shared.h"
__device__ int calls;
__global__ void count() { ++calls; }
int scale(cudaStream_t stream) {
  count<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}
"""


def test_several_units_a_header_a_setup_and_reports_in_files(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks add to memory of all: nobody has said that a peer's call has begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "include").mkdir()
    Path("include/shared.h").write_text(SHARED)
    Path("kernel.cu").write_text(KERNEL)
    Path("other.cu").write_text(OTHER)
    words = ["kernel.cu", "-I", "include", "other.cu", "-DWORLD=3", "--include", "shared.h", "--ranks", "3"]
    words += ["--expt-relaxed-constexpr", "-gencode", "arch=compute_80,code=sm_80", "--diag-suppress=177"]
    words += ["--args", "x:f32[64],sums:f32[64],total:u32[1]=0", "--setup", "prepare()", "--schedules", "2"]
    words += ["--call", "sum<world_size>(x, sums_table, rank, total_ranks[0], stream)", "--emulator", path]
    assert main([*words, "--json", "r.json", "--sarif", "r.sarif"]) == 1
    assert "unsynchronised: race on 4 bytes of rank" in capsys.readouterr().out
    problems = json.loads(Path("r.json").read_text())["problems"]
    assert {each["kind"] for each in problems} <= {"unsynchronised", "weak_order"}
    assert {each["second"]["file"] for each in problems if each["second"]} == {"kernel.cu"}
    (run,) = json.loads(Path("r.sarif").read_text())["runs"]
    assert len(run["results"]) == len(problems)
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "kernel.cu"


COMMAND = """
import sys
from rank_emulator.checking import command
def done(*_):
    RESULT
command._check = done
sys.exit(command.main())
"""


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("command._print('text')", "check-ranks: cannot write standard output: No space left on device\n"),
        ("open('/nowhere/report.json', 'w')", "check-ranks: [Errno 2] No such file or directory: '/nowhere"),
        ("1 / 0", "ZeroDivisionError: division by zero\n"),
    ],
)
def test_what_ends_the_command_itself_is_no_problem_of_the_program(result: str, words: str) -> None:
    """It had Python's status 1, of problems found, or 120 where the text was still in a buffer."""
    code = COMMAND.replace("RESULT", result)
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-c", code, "k.cu"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 2 and words in ran.stderr, ran.stderr


def test_names_that_an_encoding_lacks_are_escaped() -> None:
    code = COMMAND.replace("RESULT", "command._print('k\\u00fc.cu'); return 0")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([sys.executable, "-c", code, "k.cu"], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stdout) == (0, "k\\xfc.cu\n"), ran.stderr
