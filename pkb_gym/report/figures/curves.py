"""Lines: fast_p over p, and the best so far over turns."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.metrics.figures import AgentFigures
from pkb_gym.metrics.outcomes import TimedBaseline
from pkb_gym.report.figures.drawing import Drawing
from pkb_gym.report.figures.theme import Theme, add_legend, dash_of, mark_of, new_figure, plain_ticks, short


def draw_fast_p(agents: Sequence[AgentFigures], baseline: TimedBaseline, theme: Theme) -> Drawing:
    """fast_p over p with its 95 % intervals."""
    figure, axes = new_figure()
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        speed = each.eager if baseline == "eager" else each.captured
        curve = None if speed is None else speed.curve
        if curve is None:
            continue
        colour = theme.colour(number)
        (line,) = axes.plot(curve.p, curve.fast, dash_of(number), color=colour, label=short(each.agent), linewidth=1.6)
        drawing.label(line, f"{each.agent}: fast_1 = {curve.at(1.0):.3f}", agent=number)
        if curve.low is not None and curve.high is not None:
            band = axes.fill_between(curve.p, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
            drawing.label(band, f"{each.agent}: 95 % interval over problems", agent=number)
    axes.axvline(1.0, color=theme.muted, linewidth=0.8)
    axes.set_xscale("log")
    plain_ticks(axes, "x")
    axes.set(xlabel=f"p: speedup over the {baseline} baseline", ylabel="fast_p", ylim=(0, None))
    add_legend(axes)
    return drawing


def draw_turns(agents: Sequence[AgentFigures], theme: Theme) -> Drawing:
    """Area of the best so far over turns, and where it stops rising."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        if not each.turns:
            continue
        colour = theme.colour(number)
        turns = [figures.turns for figures in each.turns]
        means = [figures.area.mean for figures in each.turns]
        (line,) = axes.plot(
            *(turns, means, dash_of(number)),
            color=colour,
            label=short(each.agent),
            marker=mark_of(number),
            markersize=4,
        )
        drawing.label(line, agent=number)
        titles = [
            f"{each.agent}, {figures.turns} turns: right {figures.right.mean:.1%}, faster {figures.faster.mean:.1%}, "
            f"area {figures.area.mean:.3f} ({figures.improvement:+.3f})"
            for figures in each.turns
        ]
        points = axes.scatter(turns, means, s=60, color=colour, alpha=0.01, linewidths=0)
        drawing.label(points, *titles, agent=number)
        if each.plateau is not None and len(turns) > 1:
            mark = axes.axvline(each.plateau.turns, color=colour, linewidth=0.8, linestyle=":")
            drawing.label(mark, f"{each.agent}: plateau after {each.plateau.turns} turns", agent=number)
    axes.set(xlabel="turns", ylabel="area of the best so far", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(axes)
    return drawing
