"""One episode with the real evaluator: source in, compiled, run on two ranks, timed, paid."""

from __future__ import annotations

import gymnasium as gym
import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.feedback import Failure, Stage

SOLUTION = """
#include "pkb/bf16.h"
#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  auto* result = static_cast<pkb::bf16*>(out.data_ptr());
  comm.barrier();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float sum = 0;
    for (int r = 0; r < RANKS; ++r) sum += comm.peer<pkb::bf16>(tensor, r)[i];
    result[i] = pkb::bf16(sum);
  }
  comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""
RIGHT, WRONG = SOLUTION.replace("RANKS", "comm.world_size"), SOLUTION.replace("RANKS", "1")


@pytest.mark.slow
def test_an_episode(local_evaluator: LocalEvaluator):
    env = gym.make("PKB/AllReduce-v0", device="cpu", world_size=2, size="tiny", evaluator=local_evaluator).unwrapped
    env.reset(seed=0)

    observation, broken, *_, info = env.step(RIGHT.replace(";", "", 1))
    assert info["feedback"].failure is Failure.COMPILE_ERROR
    assert "error:" in observation["compiler_log"] and observation in env.observation_space

    observation, wrong, *_, info = env.step(WRONG)
    assert info["feedback"].failure is Failure.OUTPUT_MISMATCH
    assert "rank 0, out" in observation["correctness_report"] and observation in env.observation_space

    observation, right, terminated, truncated, info = env.step(RIGHT)
    assert info["feedback"].stage is Stage.PROFILE and info["feedback"].passed, info["feedback"].message
    assert observation["is_timed"] == observation["is_placed"] == 1 and observation in env.observation_space
    assert "rank 1:" in observation["profiler_report"]
    assert not terminated and not truncated
    assert broken == 0.01 and wrong > 0 and broken + wrong + right == pytest.approx(info["value"])
    assert info["value"] >= 0.85
