"""The content of a report, whatever its format: its JSON twin is this record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pkb_gym import __version__
from pkb_gym.engine.records.attempt import REFUSED, TRUNCATED, Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.roofline import Resource
from pkb_gym.metrics.figures import AgentFigures, agent_figures
from pkb_gym.metrics.groups import GroupedResults
from pkb_gym.metrics.results import key_of, results_by_agent
from pkb_gym.report.category_table import CategoryTable, category_table
from pkb_gym.report.problem_matrix import MatrixRow, problem_matrix
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
    matrix: tuple[MatrixRow, ...]
    """The best of each agent's samples of each problem."""
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
        matrix=problem_matrix(agents, attempts),
        settings=settings,
        roofline=_roofline(attempts),
        notes=(*_group_notes(results), *_notes(agents, settings, attempts)),
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


def _notes(agents: Sequence[AgentFigures], settings: Sequence[Setting], attempts: Sequence[Attempt]) -> tuple[str, ...]:
    samples = [(each.agent, [found.samples for found in each.problems if found.samples]) for each in agents]
    modes = [(each.agent, {mode.name: mode.share.mean for mode in each.failure_modes}) for each in agents]
    notes = [
        *_settings_notes(settings),
        _note(
            "Samples that could not be judged count for nothing",
            [f"{each.agent} {each.unjudged} of {each.unjudged + each.samples}" for each in agents if each.unjudged],
        ),
        _note(
            "Replies truncated at the limit of tokens before a source was complete, by share of attempts; raise "
            "max_tokens",
            [f"{agent} {shares[TRUNCATED]:.0%}" for agent, shares in modes if TRUNCATED in shares],
        ),
        _note(
            "Requests refused by the endpoint, by share of attempts; a sample whose first request was refused is not "
            "judged",
            [f"{agent} {shares[REFUSED]:.0%}" for agent, shares in modes if REFUSED in shares],
        ),
        _note(
            "Timings whose interval did not become tight within their budget, marked ≈",
            [f"{agent} {loose} of {timed}" for agent, loose, timed in _unconverged(agents, attempts) if loose],
        ),
        _note(
            "pass@k is over the problems that have k samples",
            [f"{agent} has {min(n)} to {max(n)} of a problem" for agent, n in samples if n and min(n) < max(n)],
        ),
        f"Published counts are of {published().problems} problems, whose categories add up to "
        f"{published().sum_of_categories}; counts by category were not published.",
    ]
    return tuple(note for note in notes if note)


def _settings_notes(settings: Sequence[Setting]) -> list[str]:
    notes = []
    if len({(setting.hardware, setting.device, setting.protocol) for setting in settings}) > 1:
        notes.append("Results come from several machines, devices or protocols: their speedups do not compare.")
    if {setting.device for setting in settings} == {"cpu"}:
        notes.append("All kernels ran on the CPU: speedups do not carry over to GPUs or to the published rows.")
    return notes


def _note(text: str, agents: Sequence[str]) -> str:
    """One sentence on several agents; empty for none."""
    return f"{text}: {', '.join(agents)}." if agents else ""


def _unconverged(agents: Sequence[AgentFigures], attempts: Sequence[Attempt]) -> list[tuple[str, int, int]]:
    """Agent, and its right attempts without a tight interval, and all its right and timed ones."""
    found = {each.agent: [0, 0] for each in agents}
    for attempt in attempts:
        feedback = attempt.feedback
        if feedback is not None and feedback.timing is not None and is_right(feedback):
            counts = found[attempt.agent or ""]
            counts[0] += not feedback.timing.converged
            counts[1] += 1
    return [(agent, loose, timed) for agent, (loose, timed) in found.items()]
