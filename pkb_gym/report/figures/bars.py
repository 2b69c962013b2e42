"""Bars: verdicts, mechanisms, and the price of a right kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pkb_gym.metrics.figures import AgentFigures
from pkb_gym.metrics.shares import Share
from pkb_gym.report.figures.drawing import Drawing
from pkb_gym.report.figures.theme import Theme, add_legend, new_figure, short

MAX_NAMES = 14


def draw_shares(
    agents: Sequence[AgentFigures], shares_of: Callable[[AgentFigures], Sequence[Share]], label: str, theme: Theme
) -> Drawing:
    """Shares by name, a bar for each agent, with 95 % intervals."""
    names = names_of(agents, shares_of)[:MAX_NAMES]
    figure, axes = new_figure(height_in=0.6 + 0.09 * len(names) * (len(agents) + 1))
    drawing = Drawing(figure)
    height = 0.8 / max(1, len(agents))
    for number, each in enumerate(agents):
        share_of = {share.name: share for share in shares_of(each)}
        found = [(place, share_of[name]) for place, name in enumerate(names) if name in share_of]
        if not found:
            continue
        places = [place + (number - (len(agents) - 1) / 2) * height for place, _ in found]
        means = [share.share.mean for _, share in found]
        bars = axes.barh(places, means, height, color=theme.colour(number), label=short(each.agent))
        titles = [f"{each.agent}: {share.name}, {share.count} ({share.share.mean:.1%})" for _, share in found]
        drawing.label_each(bars.patches, titles, agent=number)
        _add_intervals(drawing, places, [share for _, share in found], number, theme)
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.invert_yaxis()
    axes.set(xlabel=label, xlim=(0, None))
    axes.grid(visible=False, axis="y")
    add_legend(axes)
    return drawing


def names_of(agents: Sequence[AgentFigures], shares_of: Callable[[AgentFigures], Sequence[Share]]) -> list[str]:
    """All names, the most frequent first."""
    counts: dict[str, int] = {}
    for each in agents:
        for share in shares_of(each):
            counts[share.name] = counts.get(share.name, 0) + share.count
    return sorted(counts, key=lambda name: (-counts[name], name))


def draw_effort(agents: Sequence[AgentFigures], quantity: str, label: str, theme: Theme) -> Drawing:
    """The cost of a right kernel by agent, with 95 % intervals."""
    figure, axes = new_figure(height_in=0.9 + 0.3 * len(agents))
    drawing = Drawing(figure)
    names: list[str] = []
    for number, each in enumerate(agents):
        effort = each.effort.get(quantity)
        if effort is None or effort.per_success is None:
            continue
        cost = effort.per_success
        (bar,) = axes.barh([len(names)], [cost.mean], 0.6, color=theme.colour(number)).patches
        drawing.label(bar, f"{each.agent}: {cost.mean:.4g} a right kernel", agent=number)
        if cost.low is not None and cost.high is not None:
            (line,) = axes.plot([cost.low, cost.high], [len(names)] * 2, color=theme.ink, linewidth=1)
            drawing.label(line, f"95 % interval {cost.low:.4g} to {cost.high:.4g}", agent=number)
        names.append(short(each.agent))
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.invert_yaxis()
    axes.set(xlabel=label, xlim=(0, None))
    axes.grid(visible=False, axis="y")
    return drawing


def _add_intervals(
    drawing: Drawing, places: Sequence[float], shares: Sequence[Share], agent: int, theme: Theme
) -> None:
    axes = drawing.figure.axes[0]
    for place, share in zip(places, shares, strict=True):
        low, high = share.share.low, share.share.high
        if low is not None and high is not None:
            (line,) = axes.plot([low, high], [place, place], color=theme.ink, linewidth=0.6)
            drawing.label(line, f"95 % interval {low:.1%} to {high:.1%}", agent=agent)
