"""Rewards over the eager baseline, the captured one, and the better of the two."""

from __future__ import annotations

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.rewards import (
    BestSoFar,
    Correctness,
    FastP,
    Ladder,
    LadderThenPerformance,
    LogSpeedup,
    Milestones,
    Performance,
    Speedup,
    Utilisation,
    find_reward,
    from_json,
    to_json,
    with_baseline,
)
from pkb_gym.rewards.baseline import Baseline
from pkb_gym.rewards.component import Component
from pkb_gym.rewards.examples import timed

LAUNCH_BOUND = timed(baseline_us=158, captured_us=27.9, speedup=158 / 27.9, roofline_us=4)
"""AllGatherGemm on 2 H200s, by a kernel that is as fast as the captured baseline."""
ALL = ("eager", "captured", "registered", "better")
COMPARING = (FastP(), Performance(), LogSpeedup(), Milestones(), Speedup())


def test_saved_launches_are_not_paid_by_default() -> None:
    """Merely matching the captured baseline of AllGatherGemm earned a large share of the performance reward."""
    value = find_reward("per_turn")
    assert value(LAUNCH_BOUND) == pytest.approx(1.0)
    over_eager = find_reward("per_turn@eager")(LAUNCH_BOUND)
    assert over_eager is not None and over_eager > 1.25


@pytest.mark.parametrize(
    ("baseline", "values"),
    [("eager", (2.0, 2.0, 2.0)), ("captured", (1.0, 4.0, 2.0)), ("better", (1.0, 2.0, 2.0))],
)
def test_the_better_baseline_is_the_faster_one_and_stands_for_what_is_missing(
    baseline: Baseline, values: tuple[float, ...]
) -> None:
    """Where captured calls are faster, slower (as some at size large are), and on the CPU, where there are none."""
    reward = Speedup(baseline=baseline)
    assert tuple(reward(timed(baseline_us=100, speedup=2.0, captured_us=us)) for us in (50, 200, None)) == values


def test_registered_memory_has_a_baseline_by_name_alone() -> None:
    """It is slower than unregistered memory at some sizes; no reward takes it unless it is asked for."""
    feedback = timed(baseline_us=100, speedup=2.0, captured_us=50, registered_us=25)
    found = {baseline: Speedup(baseline=baseline)(feedback) for baseline in ALL}
    assert found == {"eager": 2.0, "captured": 1.0, "registered": 0.5, "better": 1.0}
    assert Speedup(baseline="registered")(timed(baseline_us=100, speedup=2.0, captured_us=50)) == 1.0


@pytest.mark.parametrize("component", COMPARING, ids=lambda one: type(one).__name__)
def test_a_kernel_has_the_same_reward_over_eager_and_captured_pytorch_of_one_speed(component: Component) -> None:
    """What took 50 us as CUDA graphs counts as a baseline of 50 us."""
    as_captured = timed(baseline_us=100, captured_us=50, speedup=1.5, speedup_low=1.4, roofline_us=20)
    as_eager = timed(baseline_us=50, speedup=0.75, speedup_low=0.7, roofline_us=20)
    assert with_baseline(component, "captured")(as_captured) == pytest.approx(component(as_eager))
    assert with_baseline(component, "better")(as_captured) == pytest.approx(component(as_eager))
    assert with_baseline(component, "eager")(as_captured) != pytest.approx(component(as_eager))


def test_what_is_paid_over_the_better_baseline_holds_over_either() -> None:
    """The lower ends need not be in the order of the times: that of the noisier eager baseline may lie lower."""
    feedback = timed(baseline_us=100, captured_us=95, speedup=2.0, speedup_low=1.2)
    assert feedback.timing is not None
    steady = feedback.timing.model_copy(update={"graph_speedup_low": 1.85})
    reward = LogSpeedup(baseline="better")
    over = {name: with_baseline(reward, name) for name in ALL}
    found = {name: one(feedback.model_copy(update={"timing": steady})) for name, one in over.items()}
    assert found["better"] == found["eager"] < found["captured"]


def test_the_share_of_the_roofline_knows_no_baseline() -> None:
    assert Utilisation()(timed(baseline_us=100, captured_us=50, speedup=2.0, roofline_us=25)) == 0.5
    with pytest.raises(ConfigError, match="compares with no baseline"):
        find_reward("roofline_only@better")


def test_the_baseline_is_replaced_wherever_a_composed_reward_compares() -> None:
    reward = BestSoFar(0.5 * LadderThenPerformance(Ladder()) + FastP(2.0).where(Correctness()))
    found = with_baseline(reward, "captured")
    performance = Performance(baseline="captured")
    part = FastP(2.0, baseline="captured").where(Correctness())
    assert found == BestSoFar(0.5 * LadderThenPerformance(Ladder(), performance) + part)
    assert reward != found, "the original is left alone"


@pytest.mark.parametrize("name", ["default", "per_turn", "kernelbench", "kevin", "dr_kernel", "cuda_agent"])
@pytest.mark.parametrize("baseline", ALL)
def test_presets_by_name_with_a_baseline_are_recorded_with_it(name: str, baseline: Baseline) -> None:
    reward = find_reward(f"{name}@{baseline}")
    assert f"baseline={baseline!r}" in repr(reward)
    assert from_json(to_json(reward)) == reward
    assert find_reward(f"{name}@{'eager' if baseline == 'better' else 'better'}") != reward


def test_families_take_a_baseline_too() -> None:
    assert (
        find_reward("fast_p:1.5@captured")
        == find_reward("fast_p(1.5)@captured")
        == FastP(1.5, estimate="low", baseline="captured")
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kevin@graph", "reward 'kevin@graph': no baseline 'graph'; there are eager, captured, registered, better"),
        ("kevni@better", "no reward 'kevni'. Did you mean 'kevin'?"),
        ("correctness_only@better", "compares with no baseline"),
    ],
)
def test_what_is_no_baseline_and_no_reward_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_reward(name)


@pytest.mark.parametrize("kind", [type(one) for one in COMPARING], ids=lambda kind: kind.__name__)
def test_a_component_refuses_what_is_no_baseline(kind: type[Component]) -> None:
    with pytest.raises(ValueError, match="one of 'eager', 'captured', 'registered', 'better', got 'graph'"):
        kind(baseline="graph")


def test_a_record_of_an_earlier_version_names_no_baseline_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="schema_version: expected 3, got 1"):
        from_json('{"schema_version": 1, "reward": {"component": "FastP", "p": 1.5}}')
