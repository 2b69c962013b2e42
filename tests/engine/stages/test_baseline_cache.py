"""What is measured once for all candidates of an evaluator."""

from __future__ import annotations

import pytest

from pkb_gym.engine.stages.baseline_cache import MEASUREMENTS, BaselineCache
from pkb_gym.engine.stages.overhead import Overhead


def overhead(switch_us: float) -> Overhead:
    return Overhead(30.0, switch_us, 10.0, 11.0, 500)


def test_the_median_of_the_first_overheads_counts() -> None:
    """A disturbed measurement must not be subtracted from a candidate's time."""
    cache, measured = BaselineCache(), iter((120, 110, 400, 90, 115, 116, 117, 118))
    case = ("cuda", 2, "native")
    found = [cache.overhead(case, lambda: overhead(next(measured))) for _ in range(MEASUREMENTS + 2)]
    switches_us = [one.context_switch_us for one in found]
    assert switches_us == [120, 115, 120, 115, 115] + [115.5] * 3
    assert all(one == overhead(one.context_switch_us) for one in found)
    assert cache.overhead(("cuda", 4, "native"), lambda: overhead(200)) == overhead(200)
    assert cache.overhead(("cuda", 2, "python"), lambda: overhead(300)) == overhead(300)


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
