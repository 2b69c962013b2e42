"""Where time goes: phases that add up, and GPUs that are sampled."""

from __future__ import annotations

import doctest
import time

import pytest

from pkb_gym.engine.hardware import gpus
from pkb_gym.training.processes import phases
from pkb_gym.training.processes.phases import GpuSampler, PhaseClock
from tests.fake_gpus import pretend_gpus


def test_examples_in_docstrings_hold():
    result = doctest.testmod(phases)
    assert result.attempted and not result.failed


def test_phases_add_up_also_where_something_fails():
    ticks = iter(range(100))
    clock = PhaseClock(now=lambda: float(next(ticks)))
    with clock.phase("learning"):
        with pytest.raises(ValueError, match="no"), clock.phase("evaluation"):
            raise ValueError("no")
        clock.charge("offload")
    first = clock.lap()
    assert first.phases_s == {
        **dict.fromkeys(phases.PHASES, 0.0),
        "other": 2.0,
        "learning": 2.0,
        "evaluation": 1.0,
        "offload": 1.0,
    }
    assert first.wall_s == 6.0
    assert clock.lap().phases_s["other"] == clock.lap().wall_s == 1.0


def test_a_gpu_is_waited_for_before_the_clock_is_read():
    waited = []
    clock = PhaseClock(synchronise=lambda: waited.append("gpu"))
    with clock.phase("generation"):
        assert len(waited) == 1
    assert len(waited) == 2


def test_gpus_are_sampled(monkeypatch):
    monkeypatch.setattr(phases, "SAMPLE_S", 0.001)
    pretend_gpus(monkeypatch, "one", "other")
    monkeypatch.setattr(gpus, "utilisations", lambda: (1.0, 0.5))
    sampler = GpuSampler()
    deadline = time.monotonic() + 5
    while not (found := sampler.means()) and time.monotonic() < deadline:
        time.sleep(0.005)
    sampler.close()
    sampler.close()
    assert found == (1.0, 0.5)


def test_without_gpus_nothing_is_sampled(monkeypatch):
    pretend_gpus(monkeypatch)
    sampler = GpuSampler()
    assert sampler.means() == ()
    sampler.close()
