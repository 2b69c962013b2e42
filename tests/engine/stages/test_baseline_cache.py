"""What is measured once for all candidates of an evaluator."""

from __future__ import annotations

import pytest

from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS, BaselineCache


def test_the_median_of_the_first_context_switches_counts() -> None:
    """A disturbed measurement must not be subtracted from a candidate's time."""
    cache, measured = BaselineCache(), iter((120, 110, 400, 90, 115, 116, 117, 118))
    case = (2, "native")
    found = [cache.context_switch_us(case, lambda: next(measured)) for _ in range(MEASUREMENTS + 2)]  # type: ignore[arg-type]
    assert found[:5] == [120, 115, 120, 115, 115] and found[-3:] == [116.5] * 3
    assert cache.context_switch_us((4, "native"), lambda: 200) == 200
    assert cache.context_switch_us((2, "python"), lambda: 300) == 300


def test_what_cannot_be_measured_is_not_tried_again() -> None:
    cache, tries = BaselineCache(), []

    def fails() -> float:
        tries.append(True)
        raise KeyError

    with pytest.raises(KeyError):
        cache.captured_us(("AllReduce",), fails)
    assert cache.captured_us(("AllReduce",), fails) is None and len(tries) == 1
    assert cache.captured_us(("AllGather",), lambda: 3.0) == 3.0
    assert cache.captured_us(("AllGather",), lambda: 4.0) == 3.0
