"""The overhead of a block that its calls have no part in."""

from __future__ import annotations

from pkb_gym.engine.stages.overhead import Overhead

OVERHEAD = Overhead(
    gate_us=30.0, context_switch_us=12.0, baseline_handover_us=2.0, candidate_handover_us=3.0, pad_ns=500
)


def test_there_is_a_handover_before_each_call_and_one_after_the_last() -> None:
    assert OVERHEAD.baseline_us(4) == 30 + 5 * 2
    assert OVERHEAD.candidate_us(4) == 30 + 12 + 5 * 3


def test_medians_are_of_each_figure() -> None:
    long_gate = Overhead(300.0, 10.0, 1.0, 4.0, 400)
    long_switch = Overhead(31.0, 120.0, 2.5, 2.0, 600)
    assert Overhead.median([OVERHEAD, long_gate, long_switch]) == Overhead(31.0, 12.0, 2.0, 3.0, 500)
