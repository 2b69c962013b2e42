"""Points: kernels on the roofline, and the best speedup of each problem."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.metrics.figures import AgentFigures
from pkb_gym.report.content import RooflinePoint
from pkb_gym.report.figures.drawing import Drawing
from pkb_gym.report.figures.theme import Theme, add_legend, mark_of, new_figure, plain_ticks, short
from pkb_gym.report.problem_matrix import MatrixRow

PROBLEM_CHARS = 30
"""Maximum length of a problem's label."""


def draw_roofline(agents: Sequence[AgentFigures], points: Sequence[RooflinePoint], theme: Theme) -> Drawing:
    """Utilisation of kernels over that of their baselines: on the diagonal as fast, at 1 on the roofline."""
    figure, axes = new_figure(height_in=4.0)
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        own = [point for point in points if point.agent == each.agent]
        if not own:
            continue
        marks = axes.scatter(
            [point.baseline_utilisation for point in own],
            [point.candidate_utilisation for point in own],
            s=16,
            marker=mark_of(number),
            color=theme.colour(number),
            alpha=0.7,
            linewidths=0,
            label=short(each.agent),
        )
        titles = [
            f"{point.problem} by {each.agent}, sample {point.sample}, turn {point.turn}: "
            f"{point.candidate_utilisation:.1%} of the roofline ({point.binds or 'no work'}), "
            f"baseline {point.baseline_utilisation:.1%}, speedup {point.speedup:.2f}"
            for point in own
        ]
        drawing.label(marks, *titles, agent=number)
    lowest = min((min(p.baseline_utilisation, p.candidate_utilisation) for p in points), default=0.01)
    axes.plot([lowest, 1], [lowest, 1], color=theme.muted, linewidth=0.8)
    axes.axhline(1.0, color=theme.muted, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes, "x", "y")
    axes.set(xlabel="roofline utilisation of the baseline", ylabel="roofline utilisation of the kernel")
    add_legend(axes)
    return drawing


def draw_speedups(agents: Sequence[AgentFigures], matrix: Sequence[MatrixRow], theme: Theme) -> Drawing:
    """The best speedup of each problem, those with the largest first; hollow where its interval is not tight."""
    order = problems_by_speedup(agents)
    place_of = {problem: place for place, problem in enumerate(order)}
    figure, axes = new_figure(height_in=max(2.4, 0.8 + 0.16 * len(order)))
    drawing = Drawing(figure)
    for number, each in enumerate(agents):
        colour = theme.colour(number)
        own = [
            (row.problem, cell.speedup, cell.converged is not False)
            for row in matrix
            if (cell := row.cells[number]) is not None and cell.speedup is not None
        ]
        if not own:
            continue
        marks = axes.scatter(
            [speedup for _, speedup, _ in own],
            [place_of[problem] for problem, _, _ in own],
            s=22,
            marker=mark_of(number),
            facecolors=[colour if is_tight else "none" for _, _, is_tight in own],
            edgecolors=colour,
            linewidths=0.8,
        )
        axes.scatter([], [], s=22, marker=mark_of(number), color=colour, label=short(each.agent))  # never hollow
        titles = [
            f"{problem}: {speedup:.2f} by {each.agent}{'' if is_tight else ', interval not tight'}"
            for problem, speedup, is_tight in own
        ]
        drawing.label(marks, *titles, agent=number)
    axes.axvline(1.0, color=theme.muted, linewidth=0.8)
    axes.set_xscale("log")
    plain_ticks(axes, "x")
    axes.set_yticks(range(len(order)), [short(name, PROBLEM_CHARS) for name in order], fontsize=7)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set(xlabel="best speedup over the eager baseline")
    add_legend(axes)
    return drawing


def problems_by_speedup(agents: Sequence[AgentFigures]) -> list[str]:
    """Problems with a right and timed kernel, the largest speedup first."""
    best: dict[str, float] = {}
    for each in agents:
        for problem in each.problems:
            if problem.speedup is not None:
                best[problem.problem] = max(problem.speedup, best.get(problem.problem, 0.0))
    return sorted(best, key=lambda problem: (-best[problem], problem))
