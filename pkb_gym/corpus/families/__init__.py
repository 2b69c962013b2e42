"""Kernels with knobs: one family for each problem and language, found by name.

A family is a text with named places, choices for each of its knobs, and a rule which combinations make sense. All its
variants compute the same; they differ in what decides their speed, and some are slow on purpose.
"""

from __future__ import annotations

from pkb_gym.corpus.families import adam, embedding, exchange, gemm, loss, norm, quantized, ragged, rooted, sums
from pkb_gym.corpus.families.family import Family, Variant
from pkb_gym.engine.errors import ConfigError

_MODULES = (sums, exchange, rooted, ragged, gemm, norm, embedding, quantized, adam, loss)

FAMILIES: dict[tuple[str, str], Family] = {
    (family.problem, family.language): family for module in _MODULES for family in module.FAMILIES
}
"""(problem, language) -> family."""


def find_family(problem: str, language: str) -> Family:
    """The family of kernels that solve a problem.

    Args:
        problem: its name.
        language: "cpp" or "cuda".

    Raises:
        ConfigError: there is none.
    """
    if (problem, language) not in FAMILIES:
        known = sorted(name for name, other in FAMILIES if other == language)
        raise ConfigError(f"no family of {language} kernels for {problem!r}; there are: {', '.join(known) or 'none'}")
    return FAMILIES[problem, language]


__all__ = ["FAMILIES", "Family", "Variant", "find_family"]
