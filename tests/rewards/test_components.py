"""Every component: finite, within its bounds, None exactly for infrastructure failures, and in the right order."""

from __future__ import annotations

import doctest
import importlib
import math
import pickle
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pkb_gym.engine.records.check_report import Mismatch
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.rewards import (
    ActionFacts,
    BottleneckCoverage,
    Charged,
    Component,
    Correctness,
    FastP,
    FormatCost,
    Honest,
    IntegrityFloor,
    Ladder,
    LadderThenPerformance,
    LengthCost,
    LogPerformance,
    LogSpeedup,
    Milestones,
    OwnKernelShare,
    PartialCorrectness,
    RooflinePosition,
    Speedup,
    UsesMechanism,
    Utilisation,
)
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.examples import failed, profiled, timed
from pkb_gym.rewards.profiling import is_own, time_entries
from pkb_gym.rewards.reward import is_caught, is_right
from tests.rewards.strategies import NOT_JUDGED, feedbacks

MODULES = [
    "baseline",
    "action_cost",
    "advantages",
    "algebra",
    "component",
    "correctness",
    "selection",
    "integrity",
    "mechanism",
    "milestones",
    "profiling",
    "recipes",
    "records",
    "returns",
    "roofline",
    "speedup",
]
SHARES = ("outputs", "elements", "trials", "ranks")
COMPONENTS: tuple[Component, ...] = (
    *(PartialCorrectness(of=share) for share in SHARES),
    BottleneckCoverage(),
    BottleneckCoverage(part=0.0, unknown=1.0),
    Correctness(),
    FastP(1.5),
    FastP(1.5, baseline="better"),
    Honest(),
    IntegrityFloor(Speedup() - 2, floor=-1.0),
    Ladder(),
    LadderThenPerformance(),
    LogPerformance(),
    LogPerformance(baseline="eager"),
    LogSpeedup(),
    LogSpeedup(baseline="captured"),
    Milestones(),
    Milestones(baseline="captured"),
    OwnKernelShare(),
    RooflinePosition(),
    RooflinePosition(estimate="point", baseline="captured"),
    Speedup(),
    Speedup(baseline="captured"),
    UsesMechanism(),
    Utilisation(),
)
BY_SPEED = (LogPerformance(), LogSpeedup(), Milestones(), RooflinePosition(), Speedup(estimate="low"), Utilisation())
TINY, HUGE = sys.float_info.min, sys.float_info.max


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(f"pkb_gym.rewards.{module}"))
    assert result.attempted and not result.failed


@given(feedback=feedbacks())
def test_finite_within_bounds_and_none_exactly_for_infrastructure_failures(feedback):
    for component in COMPONENTS:
        value, (low, high) = component(feedback), component.bounds()
        assert (value is None) == (feedback.failure in NOT_JUDGED), component
        if value is not None:
            assert isinstance(value, float) and math.isfinite(value) and low <= value <= high, component
        assert sum(component.parts(feedback).values()) == pytest.approx(value or 0.0), component


@pytest.mark.parametrize("low", [-HUGE, -1.0, 0.0, 5e-324, TINY, 1.0, HUGE])
@pytest.mark.parametrize("ceiling_us", [0.0, 5e-324, 1.0, HUGE])
@pytest.mark.parametrize("baseline_us", [TINY, 1.0, HUGE])
def test_finite_at_the_ends_of_floating_point_numbers(low, ceiling_us, baseline_us):
    plain = timed()
    timing = plain.timing.model_copy(update={"speedup_low": low, "speedup": low, "baseline_us": baseline_us})
    feedback = plain.model_copy(
        update={"timing": timing, "roofline": plain.roofline.model_copy(update={"ceiling_us": ceiling_us})}
    )
    for component in COMPONENTS:
        value, (least, most) = component(feedback), component.bounds()
        assert value is not None and least <= value <= most, component


@given(speedups=st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), bound=st.floats(1e-3, 1e6))
def test_faster_never_earns_less(speedups, bound):
    slower, faster = (timed(roofline_us=bound, speedup_low=speedup) for speedup in sorted(speedups))
    for component in BY_SPEED:
        assert component(slower) <= component(faster), component


@settings(max_examples=60)
@given(wrong=feedbacks(), right=feedbacks(right=True))
def test_almost_right_earns_less_than_right(wrong, right):
    assume(wrong.failure not in NOT_JUDGED and not is_right(wrong))
    for share in SHARES:
        component = PartialCorrectness(of=share, almost=0.999)
        assert component(wrong) <= 0.999 < component(right) == 1.0


@settings(max_examples=60)
@given(feedback=feedbacks().filter(is_caught))
def test_what_is_caught_earns_nothing_and_falls_to_the_floor(feedback):
    assume(feedback.failure not in NOT_JUDGED)
    assert IntegrityFloor(Ladder() + 100, floor=-1.0)(feedback) == -1.0
    for component in COMPONENTS:
        assert component(feedback) <= 0, component


def test_no_honest_submission_earns_less_than_cheating():
    reward = IntegrityFloor(LogSpeedup(), floor=-1.0)
    assert reward(failed("rejected")) == reward(timed(caught="beats_roofline")) == -1.0


def mismatched(world_size: int, trials: int, wrong: list[tuple[int, int]], listed: int) -> Feedback:
    """One output per rank and trial, of which the (trial, rank) in `wrong` are wrong and the first few are listed."""
    plain = failed("output_mismatch")
    outputs = world_size * trials
    mismatches = tuple(
        Mismatch.model_validate(plain.check.mismatches[0].model_dump() | {"trial": trial, "rank": rank})
        for trial, rank in wrong[:listed]
    )
    check = plain.check.model_copy(
        update={
            "trials": trials,
            "outputs_compared": outputs,
            "outputs_right": outputs - len(wrong),
            "mismatches": mismatches,
        }
    )
    return plain.model_copy(
        update={"check": check, "config": plain.config.model_copy(update={"world_size": world_size})}
    )


@pytest.mark.parametrize(
    ("wrong", "trials", "ranks"),
    [
        ([(0, 3)], 0.75, 0.75),
        ([(0, 3), (1, 3), (2, 3), (3, 3)], 0.0, 0.75),
        ([(2, 0), (2, 1), (2, 2), (2, 3)], 0.75, 0.0),
    ],
)
def test_shares_of_trials_and_ranks(wrong, trials, ranks):
    feedback = mismatched(world_size=4, trials=4, wrong=wrong, listed=8)
    assert PartialCorrectness("trials", almost=0.5)(feedback) == 0.5 * trials
    assert PartialCorrectness("ranks", almost=0.5)(feedback) == 0.5 * ranks


@given(wrong=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), listed=st.integers(1, 8))
def test_a_cut_report_never_pays_more_than_the_whole_one(wrong, listed):
    cut, whole = (mismatched(4, 4, sorted(wrong), number) for number in (listed, 16))
    for share in ("trials", "ranks"):
        assert PartialCorrectness(share)(cut) <= PartialCorrectness(share)(whole)


def test_falling_after_the_check_is_almost_right():
    fell = timed().model_copy(
        update={"stage": Stage.CHECK, "timing": None, "roofline": None, "failure": Failure.RUNTIME_ERROR}
    )
    fell = Feedback.model_validate(fell.model_dump())
    assert PartialCorrectness(almost=0.7)(fell) == 0.7


@pytest.mark.parametrize(("speedup", "place"), [(1.0, 0.0), (4.0, 1.0), (8.0, 1.0), (1.6, 0.5), (0.5, -1.0)])
def test_roofline_position_by_hand(speedup, place):
    """Baseline 100 us, bound 25 us: 75 us can be saved. At 1.6, 62.5 us are left and half of them are."""
    assert RooflinePosition()(timed(baseline_us=100, roofline_us=25, speedup_low=speedup)) == pytest.approx(place)


def test_noise_is_not_paid_unless_asked_for():
    noisy = timed(baseline_us=100, roofline_us=25, speedup_low=1.0, speedup=2.0)
    assert LogSpeedup()(noisy) == RooflinePosition()(noisy) == 0.0 and Utilisation()(noisy) == 0.25
    assert LogSpeedup(estimate="point")(noisy) == 1.0 and Utilisation(estimate="point")(noisy) == 0.5


LAZY = {"void at::native::vectorized_elementwise_kernel<4>": 0.6, "my_kernel": 0.1, "ncclDevKernel_AllGather_RING": 0.3}


def test_profile_by_hand():
    lazy, fused = profiled(kernels=LAZY), profiled(kernels={"my_kernel(float*, int)": 0.9, "Memcpy PtoP": 0.1})
    assert OwnKernelShare()(lazy) == pytest.approx(0.1) and BottleneckCoverage()(lazy) == 0.0
    assert OwnKernelShare()(fused) == pytest.approx(1.0) and BottleneckCoverage()(fused) == pytest.approx(1.0)
    # The longest two make up 90 % of the time, of which 10 % are missing for 70.
    assert BottleneckCoverage(part=0.95)(lazy) == pytest.approx(0.1)


def test_a_profile_without_evidence():
    assert OwnKernelShare()(profiled()) == 0.0 and OwnKernelShare(unknown=0.5)(profiled()) == 0.5
    assert BottleneckCoverage(unknown=0.5)(timed()) == 0.5
    assert time_entries(timed()) == ()


def test_native_sources_on_the_cpu_own_what_is_spent_inside_solution():
    rank = dict.fromkeys(
        [
            "rank",
            "calls",
            "user_us",
            "system_us",
            "minor_page_faults",
            "major_page_faults",
            "voluntary_switches",
            "involuntary_switches",
            "put_bytes",
            "got_bytes",
        ],
        1,
    )
    rank |= {"wall_us": 10.0, "compute_us": 4.0, "communication_us": 3.0, "waiting_us": 1.0, "host_us": 2.0}
    profile = {"ranks": [rank | {"link_bytes_per_s": None}]}
    feedback = Feedback.model_validate(timed().model_dump() | {"profile": profile, "stage": "profile"})
    assert OwnKernelShare()(feedback) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "native", "own"),
    [
        ("my_kernel", True, True),
        ("void my_kernel<float>(float*)", True, True),
        ("(anonymous namespace)::my_kernel(int)", True, True),
        ("my_kernel_2", True, False),
        ("sm90_xmma_gemm_bf16", True, False),
        ("Memcpy PtoP (Device -> Device)", True, True),
        ("Memcpy DtoD (Device -> Device)", False, False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", False, False),
        ("void at::native::elementwise_kernel<128, 4>(int)", False, False),
        ("triton_fused_add", False, True),
        ("gemm_kernel", False, True),
        ("sm90_all_gather", False, True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", False, False),
        ("nvjet_tst_128x256_64x4", False, False),
    ],
)
def test_whose_kernel_it_is(name, native, own):
    feedback = profiled()
    if not native:
        feedback = feedback.model_copy(update={"config": feedback.config.model_copy(update={"language": "triton"})})
    assert is_own(name, feedback) is own


def test_names_that_the_compiler_left_mangled():
    feedback = profiled()
    mangled = feedback.compile.kernels[0].model_copy(update={"name": "_ZN3pkb9my_kernelEPf"})
    feedback = feedback.model_copy(update={"compile": feedback.compile.model_copy(update={"kernels": (mangled,)})})
    assert is_own("pkb::my_kernel(float*)", feedback)
    assert not is_own("ncclDevKernel_x", feedback) and not is_own("", feedback)


def test_mechanisms():
    bonus = UsesMechanism(wanted=("TMA",), unwanted=())
    assert bonus(profiled(mechanisms=("TMA", "NCCL"))) == 1.0 and bonus(profiled(mechanisms=("SM load/store",))) == 0.0


@given(reply=st.text(max_size=300))
def test_costs_are_within_their_limits(reply):
    costs = (LengthCost(weight=0.1, free=10, full=50), FormatCost(weight=0.2))
    for cost in costs:
        assert 0 <= cost(ActionFacts.of(reply)) <= cost.greatest
    reward = Charged(Correctness(), costs)
    low, high = reward.bounds()
    assert (
        low
        <= reward.charge(failed("timeout"), ActionFacts.of(reply))
        <= 0
        < 0.7
        <= reward.charge(timed(), ActionFacts.of(reply))
        <= high
    )


@pytest.mark.parametrize(
    ("reply", "blocks", "source_bytes"),
    [
        ("int x;", 0, 6),
        ("```\nint x;\n```", 1, 7),
        ("first\n```cpp\na\n```\nthen\n```cpp\nbcd\n```\n", 2, 4),
        ("```cpp\nnever closed", 0, 19),
        ("ä", 0, 2),
        ("\udc80", 0, 3),
    ],
)
def test_facts_of_a_reply(reply, blocks, source_bytes):
    assert ActionFacts.of(reply) == ActionFacts(len(reply), source_bytes, blocks)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: type(component).__name__)
def test_components_pickle(component):
    assert pickle.loads(pickle.dumps(component)) == component


@pytest.mark.parametrize("kind", sorted(Recorded.registry.values(), key=lambda kind: kind.__name__))
def test_docstrings_say_range_source_and_example(kind):
    if not kind.__module__.startswith("pkb_gym.rewards") or kind.__module__.endswith((".algebra", ".selection")):
        return
    assert all(word in kind.__doc__ for word in ("Range", "Source", "Example:")), kind


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PartialCorrectness(almost=1.0), "almost right must earn less than right"),
        (lambda: PartialCorrectness(of="rows"), "of must be one of outputs, elements, trials, ranks, got 'rows'"),
        (lambda: Speedup(cap=math.inf), "cap must be positive and finite"),
        (lambda: Speedup(estimate="mean"), "estimate must be 'low' or 'point'"),
        (lambda: LogSpeedup(floor=0.5), "floor <= 0 <= cap"),
        (lambda: Milestones(stronger=0.5), "stronger >= 1"),
        (lambda: OwnKernelShare(unknown=2.0), r"unknown must be in \[0, 1\]"),
        (lambda: UsesMechanism(wanted=("pigeons",)), "no mechanism 'pigeons'; there are copy engine"),
        (lambda: IntegrityFloor(Speedup(), floor=-math.inf), "the floor must be finite"),
        (lambda: LengthCost(free=5, full=5), "free < full"),
        (lambda: FormatCost(weight=-1.0), "finite and not negative"),
        (lambda: ActionFacts(-1, 0, 0), "cannot be negative"),
    ],
)
def test_parameters_that_would_pay_the_wrong_thing_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
