"""The communicator on the host: what there is none of is the same error on every device; nothing is enqueued.

`make test` asks the CPU, `make emulated` emulated GPUs, too.
"""

from __future__ import annotations

import os

import pytest

from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import find_problem

CALLS = {
    "comm.signal(-1, 0)": "signal word -1, of 0 .. 1023",
    "comm.signal(pkb::kUserSignals, 0)": "signal word 1024, of 0 .. 1023",
    "comm.signal(0, 2)": "rank 2, of 0 .. 1",
    "comm.signal(0, -1, 7)": "rank -1, of 0 .. 1",
    "comm.wait(pkb::kUserSignals)": "signal word 1024, of 0 .. 1023",
    "comm.wait(-1, 7)": "signal word -1, of 0 .. 1023",
    "comm.put(to, from, 2, 2)": "rank 2, of 0 .. 1",
    "comm.get(to, from, 2, -1)": "rank -1, of 0 .. 1",
    "comm.barrier(0)": "group 0, of 0",
    "comm.group(3)": "group 3, of 0",
}
RIGHT = ("comm.group(-1)", "comm.put(to, from, 2, 1)", "comm.barrier()", "comm.signal(1023, 1)", "comm.barrier(-1)")
SOURCE = """
#include <stdexcept>
#include <string>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  void* const from = tensor.data_ptr();
  void* const to = out.data_ptr();
  std::string found;
  const auto look = [&](auto call) {
    try {
      call();
      found += "no error\\n";
    } catch (const tvm::ffi::Error& error) {
      found += error.kind() + ": " + error.message() + "\\n";
    }
  };
CALLS
  throw std::runtime_error("\\n" + found);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@pytest.mark.timeout(1800)  # the first compiles the emulator
@pytest.mark.parametrize("device", ["cpu", "emulated"] if os.environ.get("PKB_TEST_EMULATED") else ["cpu"])
def test_what_there_is_none_of_has_the_same_words(device: str, local_evaluator: LocalEvaluator) -> None:
    if device == "emulated" and not nvcc_available():
        pytest.skip("needs nvcc and g++")
    source = SOURCE.replace("CALLS", "\n".join(f"  look([&] {{ {call}; }});" for call in (*CALLS, *RIGHT)))
    config = EvalConfig(device=device, world_size=2, size="tiny", until="check", timeout_s=30.0)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.failure is Failure.RUNTIME_ERROR, feedback.message
    lines = [f"IndexError: {words}" for words in CALLS.values()] + ["no error"] * len(RIGHT)
    assert "\n".join(lines) in feedback.message
