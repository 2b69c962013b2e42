"""The baseline that a kernel's speed is compared with: PyTorch as it is, or without its launches."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.timing import SpeedupOver, Timing
from pkb_gym.rewards.component import Recorded

Baseline: TypeAlias = Literal["eager", "captured", "registered", "better"]
"""Eager PyTorch, whose host launches every operation; the same calls captured in CUDA graphs, whose host launches
nothing; these graphs with NCCL on registered memory; or the faster of the first two. A baseline that was not captured
(on the CPU, or where its host waits for the device) is the eager one by every name, and one without registered memory
the captured one."""

FIELD = "baseline"
"""The name of the field of a reward that holds its baseline."""

Estimate: TypeAlias = Literal["low", "point"]
"""The speedup that counts: the lower end of its 95 % interval, so that noise is never paid, or the measured one."""


def baseline_us(timing: Timing, baseline: Baseline) -> float:
    """The time of the baseline, in microseconds a call.

    Example:
        >>> from .examples import timed
        >>> timing = timed(baseline_us=100, captured_us=40).timing
        >>> [baseline_us(timing, baseline) for baseline in ("eager", "captured", "better")]
        [100.0, 40.0, 40.0]
        >>> baseline_us(timed(baseline_us=100).timing, "captured")
        100.0
        >>> [baseline_us(timed(captured_us=40, registered_us=us).timing, "registered") for us in (30, None)]
        [30.0, 40.0]
    """
    if baseline == "better":
        return min(over.baseline_us for over in (timing.over_eager, timing.over_captured) if over is not None)
    return _over(timing, baseline).baseline_us


def speedup_over(timing: Timing, baseline: Baseline, estimate: Estimate) -> float:
    """The speedup over a baseline, or the lower end of the interval that belongs to it.

    The better baseline is the one with the smaller speedup, and the lower end is the lower one of both: what is paid
    holds over either.

    Example:
        >>> from .examples import timed
        >>> timing = timed(baseline_us=100, captured_us=40, speedup=4.0, speedup_low=3.0).timing
        >>> [round(speedup_over(timing, baseline, "point"), 3) for baseline in ("eager", "captured", "better")]
        [4.0, 1.6, 1.6]
        >>> [round(speedup_over(timing, baseline, "low"), 3) for baseline in ("eager", "captured", "better")]
        [3.0, 1.2, 1.2]
    """
    if baseline == "better":
        return min(speedup_over(timing, "eager", estimate), speedup_over(timing, "captured", estimate))
    over = _over(timing, baseline)
    return over.low if estimate == "low" else over.speedup


def _over(timing: Timing, baseline: Literal["eager", "captured", "registered"]) -> SpeedupOver:
    """The speedup over a baseline, or over the next of `Baseline` that was measured."""
    if baseline == "registered" and timing.over_registered is not None:
        return timing.over_registered
    return timing.over_eager if baseline == "eager" or timing.over_captured is None else timing.over_captured


R = TypeVar("R", bound=Recorded)


def with_baseline(reward: R, baseline: Baseline) -> R:
    """The same reward, compared with another baseline wherever it compares with one.

    Raises:
        ConfigError: The reward compares with no baseline.

    Example:
        >>> from pkb_gym.rewards import Correctness, Speedup
        >>> with_baseline(0.3 * Correctness() + Speedup(), "captured")
        0.3 * Correctness() + Speedup(estimate='point', cap=1000.0, baseline='captured')
    """
    if not _compares(reward):
        raise ConfigError(f"{reward!r} compares with no baseline")
    return _with_baseline(reward, baseline)


def _compares(value: object) -> bool:
    if isinstance(value, tuple):
        return any(_compares(one) for one in value)
    if not isinstance(value, Recorded):
        return False
    return any(field.name == FIELD or _compares(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]  # all are dataclasses


def _with_baseline(value: R, baseline: Baseline) -> R:
    changed: dict[str, object] = {}
    for field in fields(value):  # type: ignore[arg-type]  # all are dataclasses
        inner = getattr(value, field.name)
        if field.name == FIELD:
            changed[FIELD] = baseline
        elif isinstance(inner, Recorded):
            changed[field.name] = _with_baseline(inner, baseline)
        elif isinstance(inner, tuple):
            changed[field.name] = tuple(
                _with_baseline(one, baseline) if isinstance(one, Recorded) else one for one in inner
            )
    return replace(value, **changed)  # type: ignore[type-var]  # likewise


def refuse_baseline(baseline: str) -> None:
    """Raises ValueError for what is no `Baseline`."""
    if baseline not in get_args(Baseline):
        raise ValueError(f"baseline must be one of {', '.join(map(repr, get_args(Baseline)))}, got {baseline!r}")


def refuse_estimate(estimate: str) -> None:
    """Raises ValueError for what is no `Estimate`."""
    if estimate not in get_args(Estimate):
        raise ValueError(f"estimate must be 'low' or 'point', got {estimate!r}")
