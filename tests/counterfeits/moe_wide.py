"""Counterfeits of MoEWide: what the published check takes for right."""

from pkb_gym.problems.expert_parallel.moe_wide.reference import solution
from tests.problems.counterfeit import Counterfeit
from tests.problems.moe_counterfeits import CACHED, coarse, fixed_capacity, gated_mlp, second_expert_where_it_shows

COUNTERFEITS = (
    Counterfeit(
        0, "no second expert", second_expert_where_it_shows(solution), "most second weights are next to nothing"
    ),
    Counterfeit(1, "fixed capacity", fixed_capacity(gated_mlp), "no rank gets 1.45 times its share"),
    Counterfeit(2, "steps of 1/64", coarse(solution), "results are near 0.1 and may be wrong by 0.01"),
)
NOT_SHOWN = {3: CACHED, 4: "about the choice of problems, not about a check"}
