"""The pictures of a report: what each shows, its numbers as a table, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pkb_gym.metrics.fast_p import FastPCurve
from pkb_gym.metrics.figures import AgentFigures, at
from pkb_gym.metrics.outcomes import TimedBaseline
from pkb_gym.metrics.shares import NOT_REPORTED, Share
from pkb_gym.report.content import ReportContent
from pkb_gym.report.figures.bars import draw_effort, draw_shares, names_of
from pkb_gym.report.figures.curves import draw_fast_p, draw_pass_at_k, draw_turns
from pkb_gym.report.figures.drawing import Drawing
from pkb_gym.report.figures.scatter import draw_roofline, draw_speedups, problems_by_speedup
from pkb_gym.report.figures.theme import Theme
from pkb_gym.report.tables import Table, interval_text, ks_shown, speedup_text

P_SHOWN = (0.5, 1.0, 1.5, 2.0, 5.0)


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        name: Name of the files and of the place on the page.
        title: Title in a few words.
        caption: Caption: the quantity, and how it is computed.
        table: Numbers of the picture.
        draw: Function from a theme to the picture in its colours.
    """

    name: str
    title: str
    caption: str
    table: Table
    draw: Callable[[Theme], Drawing]


def charts(content: ReportContent) -> list[Chart]:
    """The pictures that the results have numbers for."""
    agents = content.agents
    found = [
        *(*_pass_at_k(agents), *_fast_p(agents), *_shares(agents)),
        *(*_points(content), *_turns(agents), *_effort(agents)),
    ]
    return [chart for chart in found if chart.table.rows]


def _chart(
    name: str,
    title: str,
    caption: str,
    header: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    draw: Callable[[Theme], Drawing],
) -> Chart:
    return Chart(name, title, caption, Table(title, tuple(header), tuple(rows)).without_empty_columns(), draw)


def _pass_at_k(agents: Sequence[AgentFigures]) -> Iterator[Chart]:
    ks = ks_shown(agents)
    if len(ks) > 1:
        yield _chart(
            name="pass_at_k",
            title="pass@k",
            caption="Chance that at least one of k samples is right, estimated without bias from all samples "
            "(arXiv:2107.03374), each problem counting the same. Bands and parentheses are 95 % intervals by bootstrap "
            "over problems, near-duplicates as one.",
            header=("agent", *(f"pass@{k}" for k in ks)),
            rows=[(each.agent, *(interval_text(at(each.pass_at, k)) for k in ks)) for each in agents if each.pass_at],
            draw=partial(draw_pass_at_k, agents),
        )


def _fast_p(agents: Sequence[AgentFigures]) -> Iterator[Chart]:
    baselines: tuple[TimedBaseline, ...] = ("eager", "captured")
    for baseline in baselines:
        speeds = [(each.agent, each.eager if baseline == "eager" else each.captured) for each in agents]
        if all(speed is None or speed.log_speedup is None for _, speed in speeds):
            continue  # no right kernel was timed
        rows = [
            (agent, estimate, *(_fast_text(curve, p) for p in P_SHOWN), interval_text(area), speedup_text(log_speedup))
            for agent, speed in speeds
            if speed is not None and speed.curve is not None
            for estimate, curve, area, log_speedup in (
                ("lower end", speed.curve_low, None, None),
                ("measured", speed.curve, speed.area, speed.log_speedup),
            )
            if curve is not None
        ]
        by_low = (
            "Thick lines count a sample by the lower end of its speedup's 95 % interval, so that noise makes nothing "
            "faster; thin ones by the measured speedup, as published. "
            if any(estimate == "lower end" for _, estimate, *_ in rows)
            else ""
        )
        yield _chart(
            name=f"fast_p_{baseline}",
            title=f"fast_p over the {baseline} baseline",
            caption="Share of samples that are right and more than p times as fast as the baseline, each problem "
            f"counting the same. {by_low}Bands and parentheses are 95 % intervals as of pass@k. The area "
            "is that under the curve of measured speedups over log p from 0.1 to 10, between 0 and 1.",
            header=("agent", "speedup", *(f"fast_{p:g}" for p in P_SHOWN), "area", "speedup of right kernels"),
            rows=rows,
            draw=partial(draw_fast_p, agents, baseline),
        )


def _fast_text(curve: FastPCurve, p: float) -> str:
    return interval_text(curve.estimate_at(p))


def _shares(agents: Sequence[AgentFigures]) -> Iterator[Chart]:
    kinds: tuple[tuple[str, str, str, str, Callable[[AgentFigures], Sequence[Share]]], ...] = (
        (
            "failure_modes",
            "How attempts end",
            "Verdicts of all attempts, with 95 % intervals clustered by near-duplicates. Truncated: cut off at "
            "the limit of tokens before a source was complete; refused: by the endpoint.",
            "share of attempts",
            lambda each: each.failure_modes,
        ),
        (
            "mechanisms",
            "How right kernels move data",
            "Mechanisms of the fastest right kernel of each sample. Profiles are reports of ranks and no proof; on the "
            "CPU no mechanism is reported.",
            "share of right kernels",
            lambda each: each.mechanisms,
        ),
    )
    for name, title, caption, label, shares_of in kinds:
        names = names_of(agents, shares_of)
        if names == [NOT_REPORTED]:
            continue
        yield _chart(
            name=name,
            title=title,
            caption=caption,
            header=("", *(each.agent for each in agents)),
            rows=tuple((row, *(_share_text(shares_of(each), row) for each in agents)) for row in names),
            draw=partial(draw_shares, agents, shares_of, label),
        )


def _share_text(shares: Sequence[Share], name: str) -> str:
    return next((f"{share.count} ({share.share.mean:.1%})" for share in shares if share.name == name), "0")


def _points(content: ReportContent) -> Iterator[Chart]:
    agents = content.agents
    yield _chart(
        name="roofline",
        title="Kernels on the roofline",
        caption="Each right sample: its share of the roofline over the baseline's. Above the diagonal it is faster "
        "than the baseline; the dashed line is the roofline of the usual algorithm.",
        header=("agent", "right samples", "mean utilisation"),
        rows=tuple(
            (each.agent, str(count), interval_text(each.utilisation))
            for each in agents
            if (count := sum(point.agent == each.agent for point in content.roofline))
        ),
        draw=partial(draw_roofline, agents, content.roofline),
    )
    speedups = {
        (each.agent, problem.problem): problem.speedup
        for each in agents
        for problem in each.problems
        if problem.speedup is not None
    }
    yield _chart(
        name="speedup_by_problem",
        title="Best speedup of each problem",
        caption="Over the eager baseline, as measured; hollow marks are timings whose interval did not become tight. "
        "Problems without a right and timed kernel are left out.",
        header=("problem", *(each.agent for each in agents)),
        rows=tuple(
            (
                problem,
                *(
                    f"{speedup:.2f}" if (speedup := speedups.get((each.agent, problem))) is not None else ""
                    for each in agents
                ),
            )
            for problem in problems_by_speedup(agents)
        ),
        draw=partial(draw_speedups, agents, content.matrix),
    )


def _turns(agents: Sequence[AgentFigures]) -> Iterator[Chart]:
    if max((len(each.turns) for each in agents), default=0) > 1:
        yield _chart(
            name="turns",
            title="What further turns add",
            caption="Area under the fast_p curve of the best so far. Dotted lines mark the plateau: the turn "
            "from which on it stays within 0.01 of its final value.",
            header=(
                "agent",
                "turns",
                "right after 1",
                "right at the end",
                "area after 1",
                "area at the end",
                "plateau",
            ),
            rows=tuple(
                (
                    each.agent,
                    str(len(each.turns)),
                    interval_text(each.turns[0].right),
                    interval_text(each.turns[-1].right),
                    interval_text(each.turns[0].area),
                    interval_text(each.turns[-1].area),
                    _plateau_text(each),
                )
                for each in agents
                if each.turns
            ),
            draw=partial(draw_turns, agents),
        )


def _plateau_text(each: AgentFigures) -> str:
    if each.plateau is None:
        return ""
    found = each.plateau
    return str(found.turns) if found.low is None else f"{found.turns} ({found.low} to {found.high})"


EFFORTS = (
    ("evaluations", "Evaluations of a right kernel", "evaluations for each right kernel", ".2f"),
    ("completion_tokens", "Tokens of a right kernel", "completion tokens for each right kernel", ".0f"),
    ("cost_usd", "Price of a right kernel", "US dollars for each right kernel", ".4f"),
)


def _effort(agents: Sequence[AgentFigures]) -> Iterator[Chart]:
    for quantity, title, label, form in EFFORTS:
        rows = [
            (each.agent, interval_text(effort.per_success, form), interval_text(effort.of_successes, form), spent)
            for each in agents
            if (effort := each.effort.get(quantity)) is not None and effort.per_success is not None
            for spent in (_spent_text(each, quantity),)
        ]
        yield _chart(
            name=quantity,
            title=title,
            caption="Spent in all samples up to the first right kernel or the end, over the samples that have one; "
            "then the mean of those that have one; then the sum of all attempts.",
            header=("agent", "for each right kernel", "of samples with one", "in all"),
            rows=tuple(rows),
            draw=partial(draw_effort, agents, quantity, label),
        )


def _spent_text(each: AgentFigures, quantity: str) -> str:
    value = getattr(each.spent, quantity)
    return "" if value is None else f"{value:.2f}" if quantity == "cost_usd" else str(value)
