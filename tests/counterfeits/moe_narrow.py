"""Counterfeits of MoENarrow: what the published check takes for right."""

import torch.distributed as dist

from pkb_gym.problems.expert_parallel.moe_narrow.reference import own_subgroup, solution
from tests.problems.counterfeit import Counterfeit
from tests.problems.moe_counterfeits import CACHED, coarse, fixed_capacity, gated_mlp, second_expert_where_it_shows


def every_expert(*args):
    *layer, num_experts, _, group = args
    return solution(*layer, num_experts, num_experts, group)


def group_of(num_experts, group):
    return group or (own_subgroup(num_experts) if num_experts < dist.get_world_size() else dist.group.WORLD)


COUNTERFEITS = (
    Counterfeit(0, "every expert", every_expert, "K is E: nothing is chosen"),
    Counterfeit(
        1, "no second expert", second_expert_where_it_shows(solution), "most second weights are next to nothing"
    ),
    Counterfeit(2, "fixed capacity", fixed_capacity(gated_mlp, group_of), "all pieces are equal"),
    Counterfeit(3, "steps of 1/64", coarse(solution), "results are near 0.1 and may be wrong by 0.01"),
)
NOT_SHOWN = {4: CACHED}
