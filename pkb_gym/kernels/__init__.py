"""Kernels with knobs: the one source of starters, of the corpus and of what `evolve` searches.

A family is a text with named places, choices for each of its knobs, and a rule which combinations make sense. All its
variants compute the same. They differ in what decides their speed, and some are slow on purpose. Problems without a
family may have one plain kernel, element by element (`pkb_gym.kernels.elementwise`).
"""

from __future__ import annotations

from pkb_gym.engine.errors import ConfigError
from pkb_gym.kernels.families import FAMILIES
from pkb_gym.kernels.family import Family, Variant

SEARCHED_ONLY = frozenset(
    {
        *("Broadcast", "GemmAllGather", "HyenaCP", "ReduceScatter", "SAM3IoUSuppression", "SampleSort"),
        "VocabParallelLogProb",
    }
)
"""Problems of the test part of the split, and one whose kernels are long: no corpus holds kernels of these."""

CORPUS_FAMILIES = {key: family for key, family in FAMILIES.items() if family.problem not in SEARCHED_ONLY}
"""(problem, language) -> family that a corpus is made of."""


def find_family(problem: str, language: str) -> Family:
    """Returns the family of kernels that a corpus is made of.

    Args:
        problem: Name of the problem.
        language: "cpp" or "cuda".

    Raises:
        ConfigError: The corpus has no such family.
    """
    if (problem, language) not in CORPUS_FAMILIES:
        known = sorted(name for name, other in CORPUS_FAMILIES if other == language)
        raise ConfigError(f"no family of {language} kernels for {problem!r}; there are: {', '.join(known) or 'none'}")
    return CORPUS_FAMILIES[problem, language]


__all__ = ["CORPUS_FAMILIES", "FAMILIES", "SEARCHED_ONLY", "Family", "Variant", "find_family"]
