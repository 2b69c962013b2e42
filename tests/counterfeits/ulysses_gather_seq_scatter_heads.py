"""Counterfeits of UlyssesGatherSeqScatterHeads: what the published check takes for right."""

from pkb_gym.problems.context_parallel.ulysses_gather_seq_scatter_heads.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def never_trims(x, seq_dim, head_dim, group=None, unpadded_dim_size=0):
    return reference(x, seq_dim, head_dim, group)


def fixed_dims(x, seq_dim, head_dim, group=None, unpadded_dim_size=0):
    seq_dim, head_dim = (1, 2) if x.ndim == 4 else (0, 1)
    return reference(x, seq_dim, head_dim, group, unpadded_dim_size)


COUNTERFEITS = (
    Counterfeit(0, "never trims", never_trims, "unpadded_dim_size is always 0"),
    Counterfeit(0, "sequence before heads", fixed_dims, "the dimensions are always 1 and 2"),
)
