"""Counterfeits of UlyssesAttention: what the published check takes for right."""

from pkb_gym.problems.context_parallel.ulysses_attention.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def never_masks(hidden_states, w_qkv, w_o, group=None, num_heads=8, causal=False):
    return reference(hidden_states, w_qkv, w_o, group, num_heads)


COUNTERFEITS = (Counterfeit(2, "never masks", never_masks, "causal is always False"),)
NOT_SHOWN = {
    0: "Without exchanges the result is exact by the problem's definition, thus legal; the least cost has no traffic.",
    1: "The published inputs make the rule refuse right results, rather than accept wrong ones; "
    "tests/problems/test_ulysses_attention.py shows that.",
}
