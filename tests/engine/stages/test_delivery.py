"""A saved delivery of results brings no reward."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.timing import CAPTURED, REGISTERED, Timing
from pkb_gym.engine.stages.delivery import MIN_WORK, charge_delivery, with_captured_delivery
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.stages.time import time_blocks
from pkb_gym.engine.stages.timing_statistics import with_captured_baseline
from tests.engine.stages.fake_gangs import PYTHON, Bench


def charged(bench: Bench) -> tuple[Timing, Timing]:
    """The timing before and after."""
    with bench.run() as run:
        time_blocks(run, bench.reference.call_us, 50.0, Overhead(0.0, 0.0, 0.0, 0.0, 0))
        before = run.feedback.timing
        charge_delivery(run)
        after = run.feedback.timing
    assert before is not None and after is not None
    return before, after


def test_a_module_that_skips_the_copy_of_its_results_has_no_speedup_that_pays() -> None:
    """Gathering into the heap and disabling `take` saved the copy that the baseline pays for."""
    bench = Bench(source=PYTHON)
    bench.reference.copy_us = 20.0
    bench.candidate.call_us = bench.reference.call_us - 20.0
    before, after = charged(bench)
    assert before.speedup_low > 1.2 > 1.0 > after.speedup_low == pytest.approx(0.8 * before.speedup_low)
    assert (after.speedup, after.speedup_high) == (before.speedup, before.speedup_high)
    assert after.delivery_us == 20.0


def test_the_baseline_as_its_own_candidate_still_has_1_in_its_interval() -> None:
    bench = Bench(source=PYTHON)
    bench.reference.copy_us = 20.0
    bench.candidate.call_us = bench.reference.call_us
    _, after = charged(bench)
    assert after.speedup_low < 1 < after.speedup_high


def test_a_native_kernel_delivers_nothing_and_is_charged_nothing() -> None:
    bench = Bench()
    bench.reference.copy_us = 20.0
    before, after = charged(bench)
    assert after is before and bench.logged("time delivery") == []


def test_a_copy_that_seems_to_take_longer_than_the_baseline_leaves_an_interval() -> None:
    bench = Bench(source=PYTHON)
    bench.reference.copy_us = 1e6
    before, after = charged(bench)
    assert after.speedup_low == pytest.approx(MIN_WORK * before.speedup_low)


def test_the_captured_baseline_pays_nothing_for_it_either() -> None:
    bench = Bench(source=PYTHON)
    bench.reference.copy_us = 10.0
    _, timing = charged(bench)
    captured = with_captured_baseline(timing, [40.0] * 9, CAPTURED)
    assert captured.graph_speedup_low is not None
    found = with_captured_delivery(captured, CAPTURED)
    assert found.graph_speedup_low == pytest.approx(0.75 * captured.graph_speedup_low)
    registered = with_captured_baseline(found, [20.0] * 9, REGISTERED)
    assert registered.registered_speedup_low is not None
    both = with_captured_delivery(registered, REGISTERED)
    assert both.registered_speedup_low == pytest.approx(0.5 * registered.registered_speedup_low)
    assert both.graph_speedup_low == found.graph_speedup_low
