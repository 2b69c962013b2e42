"""Kernels with NVSHMEM and NCCL's device API, started by the ranks of a gang, each on a GPU of its own."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.support.header_libraries import NCCL, NVSHMEM, find, why_not_found
from tests.engine.candidates import Candidate, candidates
from tests.gpu.sharing import evaluate, need_gpus

ARGUMENTS = "cannot register the memory of arguments on this machine"


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("candidate", candidates("cuda/libraries"), ids=lambda candidate: candidate.path.stem)
def test_a_kernel_of_a_library_is_right(local_evaluator: LocalEvaluator, candidate: Candidate) -> None:
    need_gpus(candidate.world_size)
    library = NVSHMEM if candidate.path.stem.startswith("nvshmem") else NCCL
    if find(library) is None:
        pytest.skip(why_not_found(library))
    feedback = evaluate(local_evaluator, candidate)
    if ARGUMENTS in feedback.message:
        pytest.skip(feedback.message)  # where the driver does not export again what a rank has imported
    candidate.assert_as_expected(feedback)
