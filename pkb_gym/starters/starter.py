"""A source to begin with for one problem and language."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, Language
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.starters.comments import opening_comment
from pkb_gym.starters.native import naive_kernel
from pkb_gym.starters.triton import triton_kernel

SUFFIXES: dict[Language, str] = {"cpp": ".cpp", "cuda": ".cu", "triton": ".py", "python": ".py"}
"""Language -> suffix of its files."""

TITLES: dict[Language, str] = {"cpp": "C++", "cuda": "CUDA C++", "triton": "Triton", "python": "Python"}
"""Language -> its name in prose."""


@dataclass(frozen=True)
class Starter:
    """A source that is right as it stands.

    Attributes:
        problem: Name of the problem that it solves.
        language: Language of the source.
        source: Text of the source.
        why_python: Reason for Python in place of the requested language; empty where there is none.
    """

    problem: str
    language: Language
    source: str
    why_python: str = ""


def make_starter(problem: Problem, language: Language, device: Device = "cpu") -> Starter:
    """A starter in that language where a naive kernel is known or can be made, else in Python.

    Args:
        problem: Problem to solve.
        language: Requested language.
        device: Device of a Python starter; other languages run on one device alone.
    """
    if language == "python":
        return Starter(problem.name, "python", _python_source(problem, "", device))
    made = _in_language(problem, language)
    if made is not None:
        return Starter(problem.name, language, made)
    why = (
        f"No naive {TITLES[language]} kernel can be made for {problem.name}: its declaration has arguments and "
        "results, not the steps between, and no plain kernel of its kind is known. So this is Python."
    )
    runs_on: Device = "cpu" if language == "cpp" else "cuda"
    return Starter(problem.name, "python", _python_source(problem, why, runs_on), why)


def _in_language(problem: Problem, language: Language) -> str | None:
    summary = f"{problem.name}: {problem.summary}"
    if language == "triton":
        triton = triton_kernel(problem)
        if triton is None:
            return None
        about = (summary, f"A naive kernel to begin with: {triton.idea}.")
        return f"{opening_comment(problem, about, 'triton', 'cuda')}{triton.source}"
    if language not in ("cpp", "cuda"):
        return None
    kernel = naive_kernel(problem, language)
    if kernel is None:
        return None
    plain = f"A naive kernel to begin with: {kernel.idea}." if kernel.idea else "A naive kernel to begin with."
    about = (summary, *kernel.comment, *(() if kernel.comment else (plain,)))
    device: Device = "cpu" if language == "cpp" else "cuda"
    return f"{opening_comment(problem, about, language, device)}{kernel.source}"


def _python_source(problem: Problem, why: str, device: Device) -> str:
    """The reference's own text below the comment: its steps, to be edited one by one."""
    about = [
        f"{problem.name}: {problem.summary}",
        "The reference's own steps to begin with: right, and as fast as the baseline.",
    ]
    if why:
        about.append(why)
    return opening_comment(problem, about, "python", device) + reference_source(problem)
