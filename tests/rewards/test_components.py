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

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards import (
    Component,
    Correctness,
    FastP,
    Ladder,
    LadderThenPerformance,
    LogSpeedup,
    Milestones,
    OwnKernelShare,
    Performance,
    Speedup,
    Utilisation,
)
from pkb_gym.rewards.component import Recorded
from pkb_gym.rewards.examples import profiled, timed
from pkb_gym.rewards.profiling import is_own, own_time_share
from pkb_gym.rewards.reward import is_caught
from tests.rewards.strategies import NOT_JUDGED, feedbacks
from tests.whole_tables import examples

MODULES = [
    "baseline",
    "advantages",
    "component",
    "milestones",
    "own_communication",
    "profiling",
    "recipes",
    "records",
    "returns",
    "roofline",
    "speedup",
]
COMPONENTS: tuple[Component, ...] = (
    Correctness(),
    FastP(1.5),
    FastP(1.5, baseline="better"),
    Ladder(),
    LadderThenPerformance(),
    Performance(),
    Performance(baseline="eager"),
    LogSpeedup(),
    LogSpeedup(baseline="captured"),
    Milestones(),
    Milestones(baseline="captured"),
    OwnKernelShare(),
    OwnKernelShare(unknown=1.0),
    Speedup(),
    Speedup(baseline="captured"),
    Utilisation(),
)
BY_SPEED = (Performance(), LogSpeedup(), Milestones(), Speedup(estimate="low"), Utilisation())
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


@settings(max_examples=examples(60))
@given(feedback=feedbacks().filter(is_caught))
def test_what_is_caught_earns_nothing(feedback):
    assume(feedback.failure not in NOT_JUDGED)
    for component in COMPONENTS:
        assert component(feedback) <= 0, component


def test_noise_is_not_paid_unless_asked_for():
    noisy = timed(baseline_us=100, roofline_us=25, speedup_low=1.0, speedup=2.0)
    assert LogSpeedup()(noisy) == 0.0 and Utilisation()(noisy) == 0.25
    assert LogSpeedup(estimate="point")(noisy) == 1.0 and Utilisation(estimate="point")(noisy) == 0.5


LAZY = {"void at::native::vectorized_elementwise_kernel<4>": 0.6, "my_kernel": 0.1, "ncclDevKernel_AllGather_RING": 0.3}


def test_profile_by_hand():
    lazy, fused = profiled(kernels=LAZY), profiled(kernels={"my_kernel(float*, int)": 0.9, "Memcpy PtoP": 0.1})
    assert OwnKernelShare()(lazy) == pytest.approx(0.1)
    assert OwnKernelShare()(fused) == pytest.approx(1.0)


def test_a_profile_without_evidence():
    assert OwnKernelShare()(profiled()) == 0.0 and OwnKernelShare(unknown=0.5)(profiled()) == 0.5
    assert own_time_share(timed()) is None


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


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: type(component).__name__)
def test_components_pickle(component):
    assert pickle.loads(pickle.dumps(component)) == component


@pytest.mark.parametrize("kind", sorted(Recorded.registry.values(), key=lambda kind: kind.__name__))
def test_docstrings_say_range_source_and_example(kind):
    if not kind.__module__.startswith("pkb_gym.rewards") or kind.__module__.endswith(".component"):
        return
    assert all(word in kind.__doc__ for word in ("Range", "Source", "Example:")), kind


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Speedup(cap=math.inf), "cap must be positive and finite"),
        (lambda: Speedup(estimate="mean"), "estimate must be 'low' or 'point'"),
        (lambda: LogSpeedup(floor=0.5), "floor <= 0 <= cap"),
        (lambda: Milestones(stronger=0.5), "stronger >= 1"),
        (lambda: OwnKernelShare(unknown=2.0), r"unknown must be in \[0, 1\]"),
    ],
)
def test_parameters_that_would_pay_the_wrong_thing_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
