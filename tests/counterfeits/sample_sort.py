"""Counterfeits of SampleSort: what the published check takes for right."""

from pkb_gym.problems.other.sample_sort.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def wrong_order(local_shard, group=None):
    shard = reference(local_shard, group)
    for i in range(0, len(shard) - 1, 2):
        low, high = shard[i].item(), shard[i + 1].item()
        if high - low <= 0.01 * min(abs(low), abs(high)):
            shard[[i, i + 1]] = shard[[i + 1, i]]
    return shard


COUNTERFEITS = (
    Counterfeit(1, "swaps neighbours that are close", wrong_order, "values within 1 % of each other may change places"),
)
NOT_SHOWN = {
    0: "shards of the tiny size hold fewer than 100 values, and their ranges overlap; the problem's tests show it"
}
