"""The library that has the FFI library read few symbols at a process's first exception."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.own_library import build_for_host
from pkb_gym.engine.evaluators.gang_pool import PRELOADED
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import find_problem
from tests.waiting import PATIENCE_S

VISITS = r"""
#include <link.h>

#include <cstdio>

int print_name(dl_phdr_info* info, size_t, void*) { return std::puts(info->dlpi_name) < 0; }

extern "C" void visit() {
  dl_iterate_phdr(print_name, nullptr);
  std::puts("done");
  std::fflush(stdout);
}
"""
CALLS = """
import ctypes, sys

for library in [ctypes.CDLL(path) for path in sys.argv[1:]]:
    library.visit()
"""
NAMES = ("before.so", "libtvm_ffi.so", "after.so")


@pytest.fixture(scope="module")
def library(compiled_before: Path) -> bytes:
    return build_for_host(PRELOADED, CompileCache.in_folder(compiled_before))


@pytest.mark.parametrize("preloads", [False, True])
def test_the_ffi_library_sees_itself_and_what_was_loaded_after_it(
    tmp_path: Path, library: bytes, preloads: bool
) -> None:
    (tmp_path / "visits.cpp").write_text(VISITS)
    subprocess.run(["g++", "-shared", "-fPIC", "visits.cpp", "-o", NAMES[0]], cwd=tmp_path, check=True)
    for name in NAMES[1:]:
        shutil.copy(tmp_path / NAMES[0], tmp_path / name)
    (tmp_path / "library").write_bytes(library)
    run = subprocess.run(
        [sys.executable, "-c", CALLS, *(str(tmp_path / name) for name in NAMES)],
        env={**os.environ, "LD_PRELOAD": str(tmp_path / "library") if preloads else ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    seen = [[Path(path).name for path in part.split("\n")] for part in run.stdout.split("done\n")[: len(NAMES)]]
    assert [name for name in seen[1] if name] == [*NAMES[1:]] if preloads else set(NAMES) < set(seen[1])
    assert set(NAMES) < set(seen[0]) and seen[0] == seen[2], "other libraries see what there is"


THROWS_TWICE = """
#include <ctime>

#include "pkb/symm.h"

long processor_ms() { return std::clock() * 1000 / CLOCKS_PER_SEC; }

__attribute__((noinline)) void check(bool first, long ms) {
  TVM_FFI_CHECK(first, ValueError) << "the first took " << ms << " ms";
}

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  const long before = processor_ms();
  try {
    check(comm.rank < 0, 0);
  } catch (const tvm::ffi::Error&) {
  }
  check(comm.rank < 0, processor_ms() - before);
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
MAX_MS = 250
"""Many times what it takes, and less than to read torch's symbols."""


def test_a_kernel_that_throws_names_its_lines_and_takes_little_time(local_evaluator: LocalEvaluator) -> None:
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), THROWS_TWICE, config)
    assert feedback.failure is Failure.RUNTIME_ERROR
    trace, _, stood = feedback.message.partition("ValueError")
    assert re.findall(r'File "([^"]+)", line (\d+)', trace) == [("kernel.cpp", "18"), ("kernel.cpp", "9")]
    assert "stood at kernel.cpp:9, called from kernel.cpp:18" in stood
    took = re.search(r"the first took (\d+) ms", stood)
    assert took is not None and int(took[1]) < MAX_MS
