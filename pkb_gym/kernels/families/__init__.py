"""One module for each kind of problem, with its families in one or both languages."""

from __future__ import annotations

from pkb_gym.kernels.families import (
    adam,
    embedding,
    exchange,
    gemm,
    gemm_all_gather,
    log_prob,
    log_prob_cuda,
    long_convolution,
    long_convolution_cuda,
    loss,
    norm,
    quantized,
    ragged,
    rooted,
    sorting,
    sums,
    suppression,
    suppression_cuda,
)
from pkb_gym.kernels.family import Family

_MODULES = (
    *(adam, embedding, exchange, gemm, gemm_all_gather, log_prob, log_prob_cuda, long_convolution),
    *(long_convolution_cuda, loss, norm, quantized, ragged, rooted, sorting, sums, suppression, suppression_cuda),
)

FAMILIES: dict[tuple[str, str], Family] = {
    (family.problem, family.language): family for module in _MODULES for family in module.FAMILIES
}
"""(problem, language) -> family."""
