"""Short whole kernels that show a communication pattern, for the prompts of other problems with that pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from pkb_gym.engine.problem import Problem
from pkb_gym.kernels import CORPUS_FAMILIES
from pkb_gym.kernels.family import Family, Knobs
from pkb_gym.kernels.modules import MODULES
from pkb_gym.problems.splits import near_duplicates

Pattern: TypeAlias = Literal["gemm", "exchange", "push", "reduce", "pull"]
"""A product beside a collective; blocks for every pair of ranks; data sent on; sums over ranks; data fetched."""

_TAGS: Mapping[Pattern, frozenset[str]] = MappingProxyType(
    {
        "gemm": frozenset({"gemm", "gemv"}),
        "exchange": frozenset({"all_to_all"}),
        "push": frozenset({"broadcast", "scatter", "send_recv", "ring"}),
        "reduce": frozenset({"all_reduce", "reduce_scatter", "reduce"}),
        "pull": frozenset({"all_gather", "gather", "halo"}),
    }
)
"""Pattern -> tags of its problems, the pattern that decides first."""

_IN_KERNEL: Knobs = {"signalling": "block barrier", "blocks": 64}
_COPIED: Knobs = {**_IN_KERNEL, "copy": "pkb::copy"}
_ADDED: Knobs = {**_IN_KERNEL, "access": "element"}
_PULLED: Knobs = {"direction": "pull"}
_PUSHED: Knobs = {"direction": "push"}

_NATIVE: Mapping[tuple[str, Pattern], Mapping[str, Knobs]] = MappingProxyType(
    {
        ("cuda", "push"): {
            "AllGather": {**_COPIED, **_PUSHED},
            "Scatter": {**_PUSHED, "copy": "copy engine", "order": "from 0"},
        },
        ("cuda", "pull"): {
            "AllGather": {**_COPIED, **_PULLED},
            "Gather": {**_PULLED, "copy": "copy engine", "order": "from 0"},
        },
        ("cuda", "reduce"): {
            "AllReduce": {**_ADDED, "algorithm": "one shot"},
            "Reduce": {**_ADDED, "algorithm": "root", "own": "copy engine"},
        },
        ("cuda", "exchange"): {"AllToAll": {**_COPIED, **_PUSHED}},
        ("cuda", "gemm"): {
            "GemmAllReduce": {"kernel": "gemm_simt.h", "share": "all rows"},
            "AllGatherGemm": {"kernel": "gemm_simt.h"},
        },
        ("cpp", "push"): {
            "AllGather": {**_PUSHED, "staging": "inbox", "guard": "barrier"},
            "Scatter": {**_PUSHED, "signalling": "barrier"},
        },
        ("cpp", "pull"): {"AllGather": _PULLED, "Gather": {**_PULLED, "signalling": "barrier"}},
        ("cpp", "reduce"): {
            "AllReduce": {"algorithm": "one shot", "chunk": 1},
            "Reduce": {"algorithm": "root", "chunk": 1},
        },
        ("cpp", "exchange"): {"AllToAll": _PULLED},
        ("cpp", "gemm"): {
            "GemmAllReduce": {"share": "all rows", "loops": "dots", "store": "elements"},
            "AllGatherGemm": {"loops": "dots", "store": "elements"},
        },
    }
)
"""(Language, pattern) -> problems of the train split, each with knobs of its family other than the first values."""


@dataclass(frozen=True)
class Example:
    """A right kernel of one problem.

    Attributes:
        problem: Name of the problem that it solves.
        language: "cpp", "cuda" or "python".
        source: Text of the kernel.
    """

    problem: str
    language: str
    source: str


def pattern_of(problem: Problem) -> Pattern:
    """The pattern of a problem, by its tags; "pull" where no tag names one."""
    return next((pattern for pattern, tags in _TAGS.items() if tags & set(problem.tags)), "pull")


def example_for(problem: Problem, language: str) -> Example:
    """The kernel that is shown to those who are to solve a problem.

    It is of the train split, and neither of the problem itself nor of a near-duplicate of it: one of the same pattern
    where there is one, else of the next pattern.

    Args:
        problem: Problem to solve.
        language: "cpp" or "cuda"; for "python" and "triton" the example is Python.
    """
    wanted, forbidden = pattern_of(problem), near_duplicates(problem.name)
    written = language if language in ("cpp", "cuda") else "python"
    shown = (example for pattern in _from(wanted) for example in examples(written, pattern))
    return next(example for example in shown if example.problem not in forbidden)


@cache
def examples(language: str, pattern: Pattern) -> tuple[Example, ...]:
    """The kernels of a pattern in one language, the preferred one first."""
    if language == "python":
        return tuple(Example(name, language, source) for name, source in MODULES[pattern])
    chosen = _NATIVE[language, pattern].items()
    return tuple(Example(name, language, _rendered(CORPUS_FAMILIES[name, language], knobs)) for name, knobs in chosen)


def _from(pattern: Pattern) -> tuple[Pattern, ...]:
    """All patterns, a given one first, those after it next."""
    patterns: tuple[Pattern, ...] = get_args(Pattern)
    place = patterns.index(pattern)
    return patterns[place:] + patterns[:place]


def _rendered(family: Family, knobs: Knobs) -> str:
    return family.render({knob: values[0] for knob, values in family.choices.items()} | dict(knobs))
