"""Naive kernels of the native dialect: from the problem's folder, element by element, or the plainest of a family."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pkb_gym.corpus.families import FAMILIES, Family
from pkb_gym.engine.problem import Problem
from pkb_gym.problems.catalogue import problem_folder
from pkb_gym.starters.element_kernels import NativeLanguage, definition_head, element_source
from pkb_gym.starters.kernels import ELEMENT_KERNELS

FILE_SUFFIXES: dict[NativeLanguage, str] = {"cpp": "cpp", "cuda": "cu"}

_DEFINITION = re.compile(r"^[\w:<>]+ solution\([^{]*\) \{\n", re.MULTILINE)
_OPENING_COMMENT = re.compile(r"\A(?://[^\n]*\n)+\n*")


@dataclass(frozen=True)
class NaiveKernel:
    """A kernel without its opening comment.

    Attributes:
        source: its text.
        idea: what it does, a sentence without a full stop; empty where nothing more than `comment` is known.
        comment: paragraphs of the comment that it came with.
    """

    source: str
    idea: str = ""
    comment: tuple[str, ...] = ()


def naive_source(problem: Problem, language: NativeLanguage = "cpp") -> str | None:
    """The naive kernel in the problem's folder, `naive.cpp` or `naive.cu`; None where there is none."""
    path = problem_folder(problem) / f"naive.{FILE_SUFFIXES[language]}"
    return path.read_text(encoding="utf-8") if path.exists() else None


def naive_kernel(problem: Problem, language: NativeLanguage) -> NaiveKernel | None:
    """A right and plain kernel whose `solution` is written as the problem's declaration has it; None without one."""
    if (written := naive_source(problem, language)) is not None:
        comment = _OPENING_COMMENT.match(written)
        if comment is None:
            return NaiveKernel(_as_declared(written, problem))
        return NaiveKernel(_as_declared(written[comment.end() :], problem), comment=_paragraphs(comment.group()))
    if problem.name in ELEMENT_KERNELS:
        kernel = ELEMENT_KERNELS[problem.name]
        return NaiveKernel(element_source(kernel, problem, language), kernel.idea)
    if (problem.name, language) in FAMILIES:
        return NaiveKernel(_as_declared(_plainest(FAMILIES[problem.name, language]), problem))
    return None


def _plainest(family: Family) -> str:
    """The shortest text, which has the fewest of the ideas that make a kernel fast, with a plain number of threads."""
    plain = {knob: values[:1] for knob, values in family.choices.items() if knob in ("threads", "blocks")}
    # Those of one number alone, as a family has hundreds of variants.
    variants = replace(family, choices={**family.choices, **plain}).variants or family.variants
    return min((variant.source for variant in variants), key=len)


def _paragraphs(comment: str) -> tuple[str, ...]:
    """The paragraphs of lines that begin with `//`."""
    text = "\n".join(line.removeprefix("//").strip() for line in comment.strip().split("\n"))
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _as_declared(source: str, problem: Problem) -> str:
    """The same kernel with the head of `solution` as the declaration has it, comments included."""
    head = definition_head(problem)
    replaced, count = _DEFINITION.subn(lambda _: f"{head}\n", source)
    return replaced if count == 1 else source
