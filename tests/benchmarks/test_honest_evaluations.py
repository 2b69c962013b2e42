"""Right kernels pass again and again, and one that is refused is counted."""

from __future__ import annotations

from benchmarks.honest_evaluations import Row, evaluate_all, right_kernels
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.problems.catalogue import find_problem


def test_each_kernel_in_turn(local_evaluator: LocalEvaluator) -> None:
    kernels = list(right_kernels([find_problem("AllGather")], "cpu"))
    assert [row.kernel for row, _, _ in kernels] == ["reference", "expert"]
    wrong = "def solution(tensor):\n    return tensor.new_zeros(tensor.shape)\n"
    kernels.append((Row("AllReduce", "reference"), find_problem("AllReduce"), wrong))
    rows = evaluate_all(local_evaluator, kernels, "cpu", 2, 4)
    assert [row.evaluations for row in rows] == [2, 1, 1]
    assert [len(row.refused) for row in rows] == [0, 0, 1]
    assert rows[2].refused[0].startswith("seed 0: output_mismatch: ")
