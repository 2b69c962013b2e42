"""Naive kernels of the native dialect: from the problem's folder, the plainest of a family, or element by element."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pkb_gym.engine.problem import Problem
from pkb_gym.kernels import FAMILIES
from pkb_gym.kernels.element_kernel import definition_head, element_source
from pkb_gym.kernels.elementwise import ELEMENT_KERNELS
from pkb_gym.kernels.text import NativeLanguage
from pkb_gym.problems.catalogue import problem_folder

FILE_SUFFIXES: dict[NativeLanguage, str] = {"cpp": "cpp", "cuda": "cu"}

SAME_KERNEL = {"VocabParallelLogProbChunked": "VocabParallelLogProb"}
"""Problem -> another one whose kernels it takes: a chunk is a step of its reference alone."""

_DEFINITION = re.compile(r"^[\w:<>]+ solution\([^{]*\) \{\n", re.MULTILINE)
_OPENING_COMMENT = re.compile(r"\A(?://[^\n]*\n)+\n*")


@dataclass(frozen=True)
class NaiveKernel:
    """A kernel without its opening comment.

    Attributes:
        source: Text of the kernel.
        idea: Sentence without a full stop about its way to the result; may be empty.
        comment: Paragraphs of the comment that the kernel of a folder begins with.
    """

    source: str
    idea: str = ""
    comment: tuple[str, ...] = ()


def naive_source(problem: Problem, language: NativeLanguage = "cpp") -> str | None:
    """Returns the naive kernel in the problem's folder, `naive.cpp` or `naive.cu`; None where there is none."""
    path = problem_folder(problem) / f"naive.{FILE_SUFFIXES[language]}"
    return path.read_text(encoding="utf-8") if path.exists() else None


def naive_kernel(problem: Problem, language: NativeLanguage) -> NaiveKernel | None:
    """Returns a right and plain kernel whose `solution` is written as declared; None without one."""
    if (written := naive_source(problem, language)) is not None:
        comment = _OPENING_COMMENT.match(written)
        if comment is None:
            return NaiveKernel(_as_declared(written, problem))
        return NaiveKernel(_as_declared(written[comment.end() :], problem), comment=_paragraphs(comment.group()))
    if (family := FAMILIES.get((SAME_KERNEL.get(problem.name, problem.name), language))) is not None:
        return NaiveKernel(_as_declared(family.plainest.source, problem), family.idea)
    if (kernel := ELEMENT_KERNELS.get(problem.name)) is not None:
        return NaiveKernel(element_source(kernel, problem, language), kernel.idea)
    return None


def _paragraphs(comment: str) -> tuple[str, ...]:
    """The paragraphs of lines that begin with `//`."""
    text = "\n".join(line.removeprefix("//").strip() for line in comment.strip().split("\n"))
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _as_declared(source: str, problem: Problem) -> str:
    """The same kernel with the head of `solution` as the declaration has it, comments included."""
    head = definition_head(problem)
    replaced, count = _DEFINITION.subn(lambda _: f"{head}\n", source)
    return replaced if count == 1 else source
