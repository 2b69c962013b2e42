"""The content of a report, whatever its format: its JSON twin is this record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pkb_gym import __version__
from pkb_gym.engine.records.attempt import TRUNCATED, Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.roofline import Resource
from pkb_gym.metrics.figures import AgentFigures, agent_figures
from pkb_gym.metrics.groups import GroupedResults
from pkb_gym.metrics.results import key_of, results_by_agent
from pkb_gym.report.category_table import CategoryTable, category_table
from pkb_gym.report.published import published
from pkb_gym.rewards.reward import is_right


class RooflinePoint(Record):
    """One right kernel on the roofline."""

    agent: str
    problem: str
    sample: int
    turn: int
    baseline_utilisation: float
    candidate_utilisation: float
    speedup: float
    binds: Resource | None


class Setting(Record):
    """The machine and configuration of attempts."""

    agent: str
    hardware: str
    device: str
    world_sizes: tuple[int, ...]
    sizes: tuple[str, ...]
    protocol: str
    attempts: int


class ReportContent(Record):
    """All of a report but the trajectories."""

    schema_version: Literal[1] = 1
    package_version: str
    sources: tuple[str, ...]
    """The arguments that the results were read from."""
    agents: tuple[AgentFigures, ...]
    tables: tuple[CategoryTable, ...]
    settings: tuple[Setting, ...]
    roofline: tuple[RooflinePoint, ...]
    notes: tuple[str, ...]
    """Notes that a reader needs before comparing figures."""


def report_content(
    attempts: Sequence[Attempt], sources: Sequence[str] = (), results: GroupedResults | None = None
) -> ReportContent:
    """The content of a report.

    Args:
        attempts: Attempts, each with its agent.
        sources: Sources of the attempts, as the user named them.
        results: Groups that the attempts are of; None for one.
    """
    agents = tuple(agent_figures(results) for results in results_by_agent(attempts))
    settings = _settings(attempts)
    tables = [category_table(agents, "right"), category_table(agents, "faster")]
    if any(each.captured is not None for each in agents):
        tables.append(category_table(agents, "faster than captured"))
    return ReportContent(
        package_version=__version__,
        sources=tuple(sources),
        agents=agents,
        tables=tuple(tables),
        settings=settings,
        roofline=_roofline(attempts),
        notes=(*_group_notes(results), *_notes(agents, settings)),
    )


def _settings(attempts: Sequence[Attempt]) -> tuple[Setting, ...]:
    found: dict[tuple[str, str, str, str], list[Attempt]] = {}
    for attempt in attempts:
        if (feedback := attempt.feedback) is not None:
            config = feedback.config
            key = (attempt.agent or "", feedback.environment.hardware, config.device, config.protocol)
            found.setdefault(key, []).append(attempt)
    return tuple(
        Setting(
            agent=agent,
            hardware=hardware,
            device=device,
            protocol=protocol,
            world_sizes=tuple(sorted({resolved.world_size for each in of if (resolved := each.config) is not None})),
            sizes=tuple(sorted({str(resolved.size) for each in of if (resolved := each.config) is not None})),
            attempts=len(of),
        )
        for (agent, hardware, device, protocol), of in found.items()
    )


def _roofline(attempts: Sequence[Attempt]) -> tuple[RooflinePoint, ...]:
    """The points of the fastest right attempt of each sample."""
    best: dict[tuple[object, ...], tuple[float, RooflinePoint]] = {}
    for attempt in attempts:
        feedback = attempt.feedback
        if feedback is None or feedback.roofline is None or feedback.timing is None or not is_right(feedback):
            continue
        roofline, speedup = feedback.roofline, feedback.timing.speedup
        if not roofline.baseline_utilisation or not roofline.candidate_utilisation:
            continue
        key = (attempt.agent, *key_of(attempt)[:-1])
        if key not in best or best[key][0] < speedup:
            point = RooflinePoint(
                agent=attempt.agent or "",
                problem=attempt.problem,
                sample=attempt.sample,
                turn=attempt.turn,
                baseline_utilisation=roofline.baseline_utilisation,
                candidate_utilisation=roofline.candidate_utilisation,
                speedup=speedup,
                binds=roofline.binds,
            )
            best[key] = (speedup, point)
    return tuple(point for _, point in best.values())


def _group_notes(results: GroupedResults | None) -> tuple[str, ...]:
    if results is None or not results.groups:
        return ()
    names = ", ".join(f"({name})" for name in results.groups)
    return (
        f"Results fall into {len(results.groups)} groups that do not compare with each other: {names}. Between them "
        f"differ: {', '.join(results.differing)}.",
    )


def _notes(agents: Sequence[AgentFigures], settings: Sequence[Setting]) -> tuple[str, ...]:
    notes = [
        f"Published rows were not measured here: {published().source}. Figures by category were not published; the "
        f"problems of the published columns add up to {published().sum_of_categories}, not {published().problems}.",
    ]
    if len({(setting.hardware, setting.device, setting.protocol) for setting in settings}) > 1:
        notes.append("Results come from several machines, devices or protocols: their speedups do not compare.")
    if {setting.device for setting in settings} == {"cpu"}:
        notes.append("All kernels ran on the CPU: speedups do not carry over to GPUs or to the published rows.")
    for each in agents:
        if each.unjudged:
            notes.append(
                f"{each.agent}: {each.unjudged} of {each.unjudged + each.samples} samples could not be judged, and "
                "count for nothing."
            )
        sizes = {problem.samples for problem in each.problems if problem.samples}
        if len(sizes) > 1:
            notes.append(
                f"{each.agent} has {min(sizes)} to {max(sizes)} samples of a problem: with more samples than a problem "
                "has, pass@k speaks of the others."
            )
    notes += [
        f"{each.agent}: {mode.share.mean:.0%} truncated, cut off at the limit of tokens before a source was complete: "
        "raise max_tokens."
        for each in agents
        for mode in each.failure_modes
        if mode.name == TRUNCATED
    ]
    return tuple(notes)
