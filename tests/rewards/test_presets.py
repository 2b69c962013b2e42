"""Published rewards against values computed by hand from the formulas in the papers."""

from __future__ import annotations

import math

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.rewards import (
    BestSoFar,
    Correctness,
    FastP,
    LadderThenPerformance,
    OwnCommunication,
    OwnKernelShare,
    find_recipe,
    find_reward,
)
from pkb_gym.rewards.examples import CONFIG, failed, profiled, timed
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.recipes import RECIPES

WRONG = failed("output_mismatch", earned_share=0.99)


def advantages(name: str, group: list[list[Feedback]]) -> list[list[float | None]]:
    """What a recipe makes of the feedback of a group of episodes."""
    recipe = find_recipe(name)
    reward = find_reward(recipe.reward)
    return recipe.advantages([recipe.returns([reward(feedback) for feedback in episode]) for episode in group])


@pytest.mark.parametrize(
    ("speedup", "score"), [(0.5, 0.3 + 0.5), (1.0, 0.3 + 1.0), (2.5, 0.3 + 2.5), (100.0, 0.3 + 100.0)]
)
def test_kevin_is_three_tenths_for_being_right_plus_the_speedup(speedup, score):
    """S = 0.3 * 1{correct} + T_baseline / T_kernel * 1{correct}; arXiv:2507.11948, section 3.2."""
    kevin = find_reward("kevin")
    assert kevin(timed(speedup=speedup)) == pytest.approx(score)
    assert kevin(WRONG) == kevin(failed("compile_error")) == kevin(timed(speedup=9.0, caught="late_output")) == 0


@pytest.mark.parametrize("name", [*PRESETS, "fast_p:1.0"])
def test_no_preset_pays_noise(name):
    """On measured speedups, presets paid 4 of 12 copies of the baseline more than the baseline."""
    reward = find_reward(name)
    lucky, honest = timed(speedup=1.5, speedup_low=0.98), timed(speedup=0.99, speedup_low=0.98)
    assert reward(lucky) == reward(honest)


@pytest.mark.parametrize("name", [*PRESETS, "fast_p:1.0"])
def test_no_preset_pays_for_what_ranks_report(name):
    reward = find_reward(name)
    forged = {"my_kernel": 1.0}
    honest = {"void at::native::reduce_kernel<512>": 0.9, "ncclDevKernel_AllReduce": 0.1}
    assert reward(profiled(kernels=forged, mechanisms=("TMA",))) == reward(
        profiled(kernels=honest, mechanisms=("NCCL",))
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_value_the_clock_whoever_moves_the_data(name):
    """The page promises that; `OwnCommunication` serves other wishes."""
    library, own = (timed(speedup=2.0).model_copy(update={"calls_torch_distributed": calls}) for calls in (True, False))
    assert find_reward(name)(library) == find_reward(name)(own)
    assert [Correctness().where(OwnCommunication())(feedback) for feedback in (library, own)] == [0.0, 1.0]


def test_a_source_in_python_that_nobody_looked_at_is_not_its_own_communication():
    python = timed().model_copy(update={"config": timed().config.model_copy(update={"language": "python"})})
    assert OwnCommunication()(python) == 0.0 and OwnCommunication()(timed()) == 1.0
    assert OwnCommunication()(failed("infrastructure")) is None


def test_kevin_s_advantages():
    """Turns of value (0, 1.3) and (2.3, 0): R = (0.52, 1.3) and (2.3, 0); normalised over the four, mean 1.03."""
    group = [[WRONG, timed(speedup=1.0)], [timed(speedup=2.0), failed("timeout")]]
    returns = (0.52, 1.3, 2.3, 0.0)
    std = math.sqrt(sum((value - 1.03) ** 2 for value in returns) / 4) + 1e-4
    (a, b), (c, d) = advantages("kevin", group)
    assert (a, b, c, d) == pytest.approx(tuple((value - 1.03) / std for value in returns))


@pytest.mark.parametrize(
    ("name", "speedup", "value"),
    [
        ("kernelbench", 1.0, 0.0),
        ("kernelbench", 1.01, 1.0),
        ("fast_p:1.5", 1.5, 0.0),
        ("fast_p(1.5)", 1.6, 1.0),
        ("fast_p:0", 0.01, 1.0),
    ],
)
def test_fast_p(name, speedup, value):
    """fast_p = mean of 1{correct and speedup > p}; arXiv:2502.10517, section 3.3."""
    assert find_reward(name)(timed(speedup=speedup)) == value
    assert find_reward(name)(WRONG) == 0.0


def test_fast_p_of_a_set_of_problems():
    """Of four problems two are right and over 1: fast_1 is 50 %, fast_0 is the share of right ones, 75 %."""
    results = [timed(speedup=0.8), timed(speedup=1.2), timed(speedup=3.0), WRONG]
    assert sum(map(FastP(1.0), results)) / 4 == 0.5 and sum(map(FastP(0.0), results)) / 4 == 0.75


@pytest.mark.parametrize(
    ("speedup", "own", "value"),
    [(1.0, 0.00014, 1 + 1 + 0.00014), (1.5, 0.8615, 1 + 1.5 + 0.8615), (7.0, 1.0, 1 + 3 + 1)],
)
def test_dr_kernel_with_the_share_of_time_in_own_kernels(speedup, own, value):
    """C * (1 + min(3, speedup) + T_own / T_all), with the two shares that arXiv:2602.05885 reports."""
    kernels = {"my_kernel": own, "void at::native::reduce_kernel<512>": 1 - own}
    reward = find_reward("dr_kernel") + OwnKernelShare()
    assert reward(profiled(kernels=kernels, speedup=speedup)) == pytest.approx(value, abs=1e-6)
    assert find_reward("dr_kernel")(WRONG) == reward(WRONG) == 0.0


def test_dr_kernel_s_advantages_leave_one_out_by_turn():
    """First turns have values 0, 2 and 3 (right, and the speedup), second ones 0 and 2; sums over later turns."""
    group = [[WRONG, timed(speedup=1.0)], [timed(speedup=1.0), WRONG], [timed(speedup=2.0)]]
    assert advantages("dr_kernel", group) == [[-0.5, 2.0], [-0.5, -2.0], [1.0]]


@pytest.mark.parametrize(
    ("speedup", "value"), [(0.5, 1.0), (1.0, 1.0), (1.052, 1.0), (1.053, 2.0), (1.31, 2.0), (1.32, 3.0), (50.0, 3.0)]
)
def test_cuda_agent_s_milestones(speedup, value):
    """(t0 - t) / t0 > 5 % is a speedup over 1 / 0.95 = 1.0526, and 1.25 / 0.95 = 1.3158 for the second baseline."""
    assert find_reward("cuda_agent")(timed(speedup=speedup)) == value


@pytest.mark.parametrize("failure", ["rejected", "compile_error", "output_mismatch", "deadlock"])
def test_cuda_agent_is_minus_one_for_what_is_not_right(failure):
    assert find_reward("cuda_agent")(failed(failure)) == -1.0
    assert find_reward("cuda_agent")(timed(speedup=3.0, caught="beats_roofline")) == -1.0


@pytest.mark.parametrize(("speedup_low", "value"), [(1.0, 0.25), (2.0, 0.5), (4.0, 1.0), (8.0, 1.0)])
def test_roofline_only_knows_the_bound_alone(speedup_low, value):
    """Bound 25 us: at 100, 50, 25 and 12.5 us, whatever the baseline was."""
    reward = find_reward("roofline_only")
    assert reward(timed(baseline_us=100, roofline_us=25, speedup_low=speedup_low)) == value
    assert reward(timed(baseline_us=1000, roofline_us=25, speedup_low=10 * speedup_low)) == value
    assert reward(WRONG) == 0.0


def test_the_default_by_hand():
    """Baseline 100 us and bound 25 us: twice the speed is reachable, which is worth nine tenths of 0.3."""
    assert find_reward("default") == BestSoFar(LadderThenPerformance())
    values = [find_reward("default")(feedback) for feedback in (failed("compile_error"), WRONG, timed(speedup_low=2.0))]
    assert values == pytest.approx([0.01, 0.05 + 0.25 * 0.99**3, 1.27])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_value_where_the_fault_is_ours(name):
    assert find_reward(name)(failed("infrastructure")) is None


def test_recipes_name_their_papers():
    papers = {"kernelbench": "2502.10517", "kevin": "2507.11948", "dr_kernel": "2602.05885", "cuda_agent": "2602.24286"}
    for name, paper in papers.items():
        assert paper in find_recipe(name).source
    assert set(papers) | {"default"} == set(RECIPES)
    with pytest.raises(ConfigError, match="no recipe 'kevn'; there are default, kernelbench, kevin"):
        find_recipe("kevn")


@pytest.mark.parametrize("name", ["fast_p(", "fast_p()", "fast_p:", "fast_p(1", "fast_q(1)"])
def test_misspelt_families(name):
    with pytest.raises(ConfigError, match=r"reward 'fast_"):
        find_reward(name)


def test_a_right_kernel_on_emulated_gpus_earns_its_correctness_alone():
    """Nothing is timed there: 1 of the default reward's [0, 2], and 0.3 * 1{correct} of Kevin's."""
    emulated = CONFIG.model_copy(update={"device": "emulated", "until": "check"})
    right = timed(speedup=9.0).model_copy(
        update={"stage": Stage.RUN, "config": emulated, "timing": None, "roofline": None}
    )
    assert find_reward("default")(right) == 1.0
    assert find_reward("correctness_only")(right) == 1.0
    assert find_reward("kevin")(right) == 0.3
    assert find_reward("roofline_only")(right) == 0.0
