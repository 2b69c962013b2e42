"""The measurements of GPU experts: what is planned, what a table says, and how a run goes on."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks import gpu_experts
from benchmarks.gpu_experts import EXPERT, RIVALS, markdown, means, resumed, runs
from pkb_gym.engine.errors import ConfigError
from pkb_gym.problems.catalogue import catalogue, find_problem, problem_folder

ROW = {"problem": "AllReduce", "kernel": EXPERT, "size": "tiny", "world_size": 2, "passed": True}
TIMES = {"candidate_us": 8.0, "speedup": 4.0, "speedup_low": 3.5, "speedup_captured": 1.25, "utilisation": 0.301}


def test_most_ranks_come_first_and_rivals_beside_the_expert():
    planned = list(runs([find_problem("AllReduce")], ["tiny", "large"], [2, 1], sweeps=False, budget_s=0.1))
    rivals = sorted(path.stem for path in (RIVALS / "all_reduce").iterdir() if path.suffix in (".py", ".cu"))
    assert {"one_shot", "vllm_like"} <= set(rivals)
    assert [(run.config.world_size, run.kernel, run.size) for run in planned] == [
        *((2, kernel, size) for kernel in (EXPERT, *rivals) for size in ("tiny", "large")),
        *((1, EXPERT, size) for size in ("tiny", "large")),
    ]
    assert all("solution" in run.source for run in planned)


def test_every_rival_is_a_candidate_of_a_problem_that_has_an_expert():
    folders = {problem_folder(problem).name: problem for problem in catalogue()}
    rivals = sorted(RIVALS.glob("*/*.py"))
    assert len(rivals) >= 6
    for path in rivals:
        problem = folders[path.parent.name]
        kernels = gpu_experts.kernels_of(problem, 2)
        functions = [node for node in ast.parse(kernels[path.stem]).body if isinstance(node, ast.FunctionDef)]
        named = {function.name: [argument.arg for argument in function.args.args] for function in functions}
        arguments = [argument.name for argument in problem.args]
        assert named["solution"] == arguments and named.get("place", arguments) == arguments


def test_a_table_has_both_baselines():
    text = markdown([ROW | TIMES, ROW | TIMES | {"size": "large", "speedup_captured": None, "utilisation": None}])
    assert text.splitlines()[-1] == (
        "| AllReduce | expert | 2 | 4.00 (3.50), 1.25, 8 us, 30 % | - | 4.00 (3.50), -, 8 us, - |"
    )


def test_means_are_of_experts_that_passed_against_the_better_baseline():
    bound = ROW | TIMES | {"binds": "link", "utilisation": 0.5}
    eager = ROW | TIMES | {"problem": "DDP", "speedup": 1.0, "speedup_low": 0.9, "speedup_captured": None}
    others = [bound | {"kernel": "one_shot", "speedup": 99.0}, ROW | {"problem": "Reduce", "passed": False}]
    text = means([bound, eager | {"binds": "matrix"}, *others, bound | {"size": "M=64"}])
    assert text.splitlines()[2:] == ["| 2 | tiny | 2 | 2.0 | 1.1 | 1 | 1 of 1 |"]


def test_rows_of_another_commit_are_not_gone_on_with(tmp_path: Path):
    path = tmp_path / "gpu_experts.json"
    assert resumed(path, "abc") == []
    path.write_text(json.dumps({"commit": "abc", "rows": [ROW]}))
    assert resumed(path, "abc") == [ROW] and resumed(path, "abd") == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("output 0 differs\non rank 1", "output 0 differs"),
        (
            "rank 0: call 2: Traceback (most recent call last):\n  File x\nValueError: too wide\n",
            "ValueError: too wide",
        ),
        (
            "rank 1: Traceback (most recent call last):\ntorch.AcceleratorError: CUDA error: misaligned address\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
            "torch.AcceleratorError: CUDA error: misaligned address",
        ),
        ("", ""),
    ],
)
def test_a_failure_keeps_the_line_that_says_what_happened(message: str, said: str) -> None:
    """Of a traceback the first line says nothing."""
    assert gpu_experts.cause(message) == said


def test_a_size_that_a_machine_refuses_is_a_row_and_not_the_end() -> None:
    class Refusing:
        def evaluate(self, *_: object) -> None:
            raise ConfigError("GNNSparseFeatureFetch: size 'published' needs 162.9 GiB")

    (run, *_) = runs([find_problem("AllReduce")], ["tiny"], [1], sweeps=False, budget_s=0.1)
    row = gpu_experts.judged(Refusing(), run)  # type: ignore[arg-type]
    assert not row["passed"] and row["failure"] == "refused" and "162.9 GiB" in row["message"]
