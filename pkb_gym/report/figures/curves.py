"""Lines: pass@k over k, fast_p over p, and the best so far over turns."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.metrics.figures import AgentFigures
from pkb_gym.metrics.outcomes import TimedBaseline
from pkb_gym.report.figures.drawing import Drawing
from pkb_gym.report.figures.theme import (
    Theme,
    add_legend,
    dash_of,
    mark_of,
    new_figure,
    plain_ticks,
    short,
    whole_ticks,
)


def band_alpha(agents: Sequence[AgentFigures]) -> float:
    """Opacity of intervals, in (0, 1]: less where many lie over each other."""
    return 0.6 / max(4, len(agents))


def draw_pass_at_k(agents: Sequence[AgentFigures], theme: Theme) -> Drawing:
    """pass@k over k with its 95 % intervals."""
    figure, axes = new_figure()
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        if not each.pass_at:
            continue
        colour = theme.colour(number)
        ks, found = [one.k for one in each.pass_at], [one.estimate for one in each.pass_at]
        (line,) = axes.plot(
            *(ks, [one.mean for one in found], dash_of(number)),
            color=colour,
            label=short(each.agent),
            marker=mark_of(number),
            markersize=4,
        )
        drawing.label(
            line, f"{each.agent}: pass@1 = {found[0].mean:.3f}, pass@{ks[-1]} = {found[-1].mean:.3f}", agent=number
        )
        known = [(k, one.low, one.high) for k, one in zip(ks, found, strict=True) if one.low is not None]
        if known:
            places, low, high = zip(*known, strict=True)
            band = axes.fill_between(places, low, high, color=colour, alpha=band_alpha(agents), linewidth=0)
            drawing.label(band, f"{each.agent}: 95 % interval over problems", agent=number)
    axes.set(xlabel="k: samples", ylabel="pass@k", ylim=(0, 1.03))
    whole_ticks(axes)
    add_legend(axes)
    return drawing


def draw_fast_p(agents: Sequence[AgentFigures], baseline: TimedBaseline, theme: Theme) -> Drawing:
    """fast_p over p: by the lower end with its 95 % intervals, and by the measured speedup as a thin line."""
    figure, axes = new_figure()
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        speed = each.eager if baseline == "eager" else each.captured
        measured = None if speed is None else speed.curve
        if speed is None or measured is None:
            continue
        curve = speed.curve_low or measured  # entries of the leaderboard may lack it
        colour = theme.colour(number)
        if speed.curve_low is not None:
            (thin,) = axes.plot(measured.p, measured.fast, color=colour, linewidth=0.7)
            drawing.label(thin, f"{each.agent}: fast_1 = {measured.at(1.0):.3f} as measured", agent=number)
        (line,) = axes.plot(curve.p, curve.fast, dash_of(number), color=colour, label=short(each.agent), linewidth=1.8)
        by = "" if curve is measured else " by lower end"
        drawing.label(line, f"{each.agent}: fast_1 = {curve.at(1.0):.3f}{by}", agent=number)
        if curve.low is not None and curve.high is not None:
            band = axes.fill_between(
                curve.p, curve.low, curve.high, color=colour, alpha=band_alpha(agents), linewidth=0
            )
            drawing.label(band, f"{each.agent}: 95 % interval over problems", agent=number)
    axes.axvline(1.0, color=theme.muted, linewidth=0.8)
    axes.set_xscale("log")
    plain_ticks(axes, "x")
    axes.set(xlabel=f"p: speedup over the {baseline} baseline", ylabel="fast_p", ylim=(0, 1.03))
    add_legend(axes)
    return drawing


def draw_turns(agents: Sequence[AgentFigures], theme: Theme) -> Drawing:
    """Area of the best so far over turns, and where it stops rising."""
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
    whole_ticks(axes)
    add_legend(axes)
    return drawing
