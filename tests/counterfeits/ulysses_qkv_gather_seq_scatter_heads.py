"""Counterfeits of UlyssesQKVGatherSeqScatterHeads: what the published check takes for right."""

from pkb_gym.problems.context_parallel.ulysses_qkv_gather_seq_scatter_heads.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def never_trims(qkv_tensor, seq_dim, group=None, unpadded_dim_size=None, restore_shape=True):
    return reference(qkv_tensor, seq_dim, group, None, restore_shape)


def always_joins(qkv_tensor, seq_dim, group=None, unpadded_dim_size=None, restore_shape=True):
    return reference(qkv_tensor, seq_dim, group, unpadded_dim_size)


COUNTERFEITS = (
    Counterfeit(0, "never trims", never_trims, "unpadded_dim_size is always None"),
    Counterfeit(0, "always joins the last dimensions", always_joins, "restore_shape is always True"),
)
