"""The contract of all doors: submissions, and what a session in the environment of pkb-gym itself made of them.

Every door is given the same submissions by the same service. It has to return the same task, verdict, reward and text.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source

PROBLEMS = ("AllReduce", "Gather", "SampleSort")
"""With outputs of fixed shape and not, on all ranks and on one: a door treats all problems alike."""
SEED = 11
INFRASTRUCTURE = "# contract: the evaluator fails at this source"
"""A source with this line is answered by the service as a failure of its own."""

SETTINGS = {
    "device": "cpu",
    "world_size": 2,
    "size": "tiny",
    "until": "time",
    "timeout_s": 2.0,
    "max_turns": 4,
    "reward": "default",
}
"""Of `EpisodeSettings`, without evaluator and split."""

AROUND = """
import functools as _functools

_reference = solution


def _zeros(value):
    if isinstance(value, dict):
        return {name: _zeros(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_zeros(each) for each in value)
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


@_functools.wraps(_reference)
def solution(*args, **kwargs):
"""
BODIES = {
    "wrong": "    return _zeros(_reference(*args, **kwargs))\n",
    "crash": "    import os\n    os.abort()\n",
    "deadlock": "    if torch.distributed.get_rank() == 0:\n        torch.distributed.barrier()\n"
    "    return _reference(*args, **kwargs)\n",
    "infrastructure": f"    {INFRASTRUCTURE}\n    return _reference(*args, **kwargs)\n",
}
CASES = ("expert", "wrong", "crash", "deadlock", "compile_error", "infrastructure")
FAILURES = {
    "expert": None,
    "wrong": "output_mismatch",
    "crash": "runtime_error",
    "deadlock": "deadlock",
    "compile_error": "compile_error",
    "infrastructure": "infrastructure",
}
"""Case -> the failure that the verdict holds."""


def source_of(problem: str, case: str) -> str:
    """The submission of a case."""
    found = find_problem(problem)
    if case == "expert":
        expert = expert_source(found)
        assert expert is not None, f"{problem} has no expert kernel for the CPU"
        return expert
    reference = reference_source(found)
    if case == "compile_error":
        return f"{reference}\ndef unfinished(:\n"
    return f"import torch\nimport torch.distributed\n{reference}{AROUND}{BODIES[case]}"


@dataclass(frozen=True)
class Expected:
    """One submission, alone in its episode, and its outcome.

    Attributes:
        problem: Name of the problem.
        case: One of `CASES`.
        source: Source of the submission.
        task: Text that begins the episode.
        text: Reply to the submission.
        failure: Failure of the verdict; None where it passed.
        value: Value of the submission; None where it was not judged.
        reward: Reward of the turn; None where it was not judged.
        speedup: Speedup over the baseline; 0 where it was not timed.
        seed: Seed of the inputs; an equal request has the same verdict.
    """

    problem: str
    case: str
    source: str
    task: str
    text: str
    failure: str | None
    value: float | None
    reward: float | None
    speedup: float
    seed: int

    @property
    def id(self) -> str:
        return f"{self.problem}-{self.case}"


def write(path: Path, url: str, expected: list[Expected]) -> None:
    """Keeps the contract for the tests of the doors."""
    content = {"url": url, "expected": [asdict(each) for each in expected]}
    path.write_text(json.dumps(content), encoding="utf-8")


@cache
def read() -> tuple[str, tuple[Expected, ...]]:
    """Url of the service, and the contract; from the file that PKB_DOORS_CONTRACT names."""
    content = json.loads(Path(os.environ["PKB_DOORS_CONTRACT"]).read_text(encoding="utf-8"))
    return content["url"], tuple(Expected(**each) for each in content["expected"])


def url() -> str:
    """Of the evaluation service."""
    return read()[0]


def expected() -> tuple[Expected, ...]:
    """All submissions with their outcomes."""
    return read()[1]


def find(problem: str, case: str) -> Expected:
    """One of them."""
    return next(each for each in expected() if (each.problem, each.case) == (problem, case))


def settings() -> dict[str, object]:
    """Of `EpisodeSettings`, so that episodes are judged by the service."""
    return {**SETTINGS, "evaluator": url(), "split": list(PROBLEMS)}
