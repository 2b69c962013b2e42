"""The place of a kernel between its time and the least time the hardware allows; see docs/roofline.md.

The roofline model (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009), with the links between ranks as one more
resource. For each resource, time is at least work / rate; resources may be used all at once, so the greatest of these
times counts:

    ceiling     = max(matrix_flops / matrix peak, vector_flops / vector peak, memory traffic, link bytes / link peak)
    lower bound = the same of the work that no kernel avoids, over the limits that no kernel exceeds

Link bytes are the greater of both directions, which are independent.

"cuda": each rank has its own device, and all must finish, so each resource counts at the rank that needs it longest.

"cpu": all ranks share one memory, and a kernel may let any core do any rank's work (the cores of three ranks may push
into the fourth's memory at once). Only the total over all ranks is bound, by all cores together; so each resource
counts as the mean over the ranks, each with its share of the machine (`HardwareSpec.rank_peaks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.lookup import find_hardware
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks
from pkb_gym.engine.hardware.tiers import memory_s
from pkb_gym.engine.problem import Axes, Cost, Problem
from pkb_gym.engine.records.roofline import LowerBound, Rates, Resource, ResourceTimes, Roofline
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.candidate_run import CandidateRun

BOUND_TRIALS = 8
"""Timed trials of which the one with the least work gives the lower bound, where sizes change from trial to trial."""


def place_run(run: CandidateRun) -> None:
    """Adds the roofline of a timed candidate to its feedback."""
    timed = run.feedback.timing
    assert timed is not None
    if run.workload.problem.undeclared:
        return
    try:
        hardware = find_hardware(run.config.device)
    except ConfigError:
        return  # a GPU whose peaks nobody has entered is no reason to lose what was measured
    workload = run.workload
    varies = workload.problem.trials(workload.protocol).vary is not None
    roofline = place(
        workload.problem,
        [workload.axes(trial, True) for trial in range(BOUND_TRIALS if varies else 1)],
        hardware,
        timed.baseline_us,
        timed.candidate_us,
    )
    run.feedback.roofline = roofline
    run.feedback.suspect(integrity.beats_roofline(roofline.lower_bound, timed))


def place(
    problem: Problem,
    trials: Sequence[Sequence[Axes]],
    hardware: HardwareSpec,
    baseline_us: float | None = None,
    candidate_us: float | None = None,
) -> Roofline:
    """Places a call of both sides between their times and what the hardware allows.

    Args:
        problem: Problem whose cost and least work are evaluated.
        trials: Axes per trial and rank. The first trial's cost gives the ceiling, the least work of all trials the
            lower bound.
        hardware: Hardware of the ranks, one device each.
        baseline_us: Time of one baseline call, in microseconds; None where it was not timed.
        candidate_us: Time of one candidate call, in microseconds; None where it was not timed.

    Raises:
        ConfigError: see `place_costs`.
    """
    costs = [problem.cost(ax) for ax in trials[0]]
    bound = lower_bound(
        ([problem.least_cost(ax) for ax in axes] for axes in trials), hardware, problem.least_work.argument
    )
    return place_costs(costs, bound, trials[0][0].dtype, hardware, baseline_us, candidate_us)


def place_costs(
    costs: Sequence[Cost],
    bound: LowerBound,
    dtype: str,
    hardware: HardwareSpec,
    baseline_us: float | None,
    candidate_us: float | None,
) -> Roofline:
    """Computes the ceiling of one call and places both times against it.

    Args:
        costs: Cost of each rank's call, in order of ranks.
        bound: Lower bound of the same call.
        dtype: Floating dtype of the problem, which selects the peaks.
        hardware: Hardware of the ranks, one device each.
        baseline_us: Time of one baseline call, in microseconds; None where it was not timed.
        candidate_us: Time of one candidate call, in microseconds; None where it was not timed.

    Raises:
        ConfigError: no ranks, no peaks for this dtype, or a time that is not positive.
    """
    if not costs:
        raise ConfigError("a roofline needs the cost of at least one rank, got none")
    peaks = hardware.rank_peaks(len(costs))
    if dtype not in peaks.matrix_flops_per_s or dtype not in peaks.vector_flops_per_s:
        known = ", ".join(sorted(peaks.matrix_flops_per_s))
        raise ConfigError(f"{hardware.name}: no peaks for dtype {dtype!r}; there are {known}")
    for name, time_us in (("baseline", baseline_us), ("candidate", candidate_us)):
        if time_us is not None and not time_us > 0:
            raise ConfigError(f"{name}'s time must be positive, got {time_us} us; give None where it was not timed")

    work = rank_work(costs, hardware.device)
    seconds: dict[Resource, float] = {
        "matrix": work["matrix"] / peaks.matrix_flops_per_s[dtype],
        "vector": work["vector"] / peaks.vector_flops_per_s[dtype],
        "memory": peaks.memory_s(work["memory"]),
        "link": work["link"] / peaks.link_bytes_per_s,
    }
    binds, ceiling_us = _greatest(seconds)
    return Roofline(
        ceiling_us=ceiling_us,
        binds=binds,
        times=_microseconds(seconds),
        lower_bound=bound,
        latency_floor_us=_latency_floor_us(work["link"], peaks),
        peaks=Rates(
            matrix_flops_per_s=peaks.matrix_flops_per_s[dtype],
            vector_flops_per_s=peaks.vector_flops_per_s[dtype],
            memory_bytes_per_s=work["memory"] / seconds["memory"] if work["memory"] else peaks.memory[0].bytes_per_s,
            link_bytes_per_s=peaks.link_bytes_per_s,
        ),
        peaks_source=peaks.source,
        baseline_utilisation=None if baseline_us is None else ceiling_us / baseline_us,
        candidate_utilisation=None if candidate_us is None else ceiling_us / candidate_us,
        baseline_achieved=None if baseline_us is None else _achieved(work, baseline_us),
        candidate_achieved=None if candidate_us is None else _achieved(work, candidate_us),
    )


def lower_bound(trials: Iterable[Sequence[Cost]], hardware: HardwareSpec, argument: str) -> LowerBound:
    """The lower bound of the trial with the least.

    Args:
        trials: Unavoidable work of each rank, per trial.
        hardware: Hardware of the ranks, one device each.
        argument: Reason why no kernel avoids this work.
    """
    return min((_trial_bound(costs, hardware, argument) for costs in trials), key=lambda bound: bound.time_us)


def _trial_bound(costs: Sequence[Cost], hardware: HardwareSpec, argument: str) -> LowerBound:
    limits = hardware.rank_limits(len(costs))
    work = rank_work(costs, hardware.device)
    seconds: dict[Resource, float] = {
        "matrix": work["matrix"] / limits.matrix_flops_per_s,
        "vector": 0.0,
        "memory": memory_s(limits.memory, work["memory"]),
        "link": 0.0 if limits.link_bytes_per_s is None else work["link"] / limits.link_bytes_per_s,
    }
    binds, time_us = _greatest(seconds)
    return LowerBound(
        time_us=time_us, binds=binds, times=_microseconds(seconds), argument=argument, limits_source=limits.source
    )


def rank_work(costs: Sequence[Cost], device: str) -> dict[Resource, float]:
    """The work of one rank that counts: the greatest of all ranks on "cuda", their mean on "cpu" (see the module)."""
    combine: Callable[[list[float]], float] = max if device == "cuda" else _mean
    return {
        "matrix": combine([cost.matrix_flops for cost in costs]),
        "vector": combine([cost.vector_flops for cost in costs]),
        "memory": combine([cost.memory_bytes for cost in costs]),
        # Each direction by itself: on a CPU, what goes out of one rank's memory comes into another's.
        "link": max(combine([cost.link_in_bytes for cost in costs]), combine([cost.link_out_bytes for cost in costs])),
    }


def _greatest(seconds: dict[Resource, float]) -> tuple[Resource | None, float]:
    """The resource that takes longest, None where none takes any time, and its microseconds."""
    slowest = max(seconds, key=lambda resource: seconds[resource])
    return (slowest if seconds[slowest] > 0 else None), seconds[slowest] * 1e6


def _microseconds(seconds: dict[Resource, float]) -> ResourceTimes:
    return ResourceTimes(**{f"{resource}_us": value * 1e6 for resource, value in seconds.items()})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _latency_floor_us(link_bytes: float, peaks: Peaks) -> float | None:
    """One latency where anything crosses a link."""
    if link_bytes == 0:
        return 0.0
    return None if peaks.link_latency_s is None else peaks.link_latency_s * 1e6


def _achieved(work: dict[Resource, float], time_us: float) -> Rates:
    """Rates of one rank over that time."""
    seconds = time_us * 1e-6
    return Rates(
        matrix_flops_per_s=work["matrix"] / seconds,
        vector_flops_per_s=work["vector"] / seconds,
        memory_bytes_per_s=work["memory"] / seconds,
        link_bytes_per_s=work["link"] / seconds,
    )
