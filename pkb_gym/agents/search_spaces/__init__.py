"""Search spaces: the kernels that `evolve` searches for each problem and language.

They are the families of the corpus and, for problems that no corpus may hold (`problems/splits.json`, part `test`) or
that have none there yet, the families of this folder. Nothing here is exported, so that what is trained on never holds
a kernel of the test part.
"""

from __future__ import annotations

from pkb_gym.agents.search_spaces import (
    collectives,
    collectives_cuda,
    gemm_all_gather,
    log_prob,
    log_prob_cuda,
    long_convolution,
    long_convolution_cuda,
    sorting,
    suppression,
    suppression_cuda,
)
from pkb_gym.corpus.families import FAMILIES, Family

_CPP = (collectives, sorting, suppression, log_prob, long_convolution)
_CUDA = (collectives_cuda, gemm_all_gather, suppression_cuda, log_prob_cuda, long_convolution_cuda)

OF_SEARCH: dict[tuple[str, str], Family] = {
    (family.problem, family.language): family for module in (*_CPP, *_CUDA) for family in module.FAMILIES
}
"""(problem, language) -> family that is searched and never exported."""

SEARCH_SPACES: dict[tuple[str, str], Family] = {**FAMILIES, **OF_SEARCH}
"""(problem, language) -> family."""
