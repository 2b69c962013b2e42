"""Summaries of the rows of `gpu_baselines`: counts, and tables in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

HALF = 0.5
"""Share of the peak that, as published, over 90 % of the baselines stay below."""

SLOWER = 1.15
"""Ratio to the published time from which a baseline of ours is listed as slower than it should be."""

INPUTS_S = 5.0
"""The longest time that making a problem's inputs may take."""


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts by size, and what stands out."""
    sizes = dict.fromkeys(row["size"] for row in rows)
    return {size: _of_size([row for row in rows if row["size"] == size]) for size in sizes}


def _of_size(rows: Sequence[Row]) -> dict[str, Any]:
    measured = [row for row in rows if "eager" in row]
    placed = [row for row in measured if "utilisation" in row]
    graphs = [row for row in placed if row["graph_utilisation"] is not None]
    compared = [row for row in measured if "mean_over_published" in row]
    by_inputs = sorted(measured, key=lambda row: -row["inputs_s"])
    return {
        "problems": len(rows),
        "measured": len(measured),
        "not_measured": {row["problem"]: row["error"] for row in rows if "eager" not in row},
        "below_half_of_peak": sum(row["utilisation"] < HALF for row in placed),
        "placed": len(placed),
        "captured": len(graphs),
        "captured_below_half_of_peak": sum(row["graph_utilisation"] < HALF for row in graphs),
        "binds": dict(Counter(str(row["binds"]) for row in placed)),
        "compared_with_published": len(compared),
        "slower_than_published": {
            row["problem"]: row["mean_over_published"] for row in compared if row["mean_over_published"] > SLOWER
        },
        "slowest_inputs_s": {row["problem"]: row["inputs_s"] for row in by_inputs[:3]},
        "inputs_too_slow_s": {row["problem"]: row["inputs_s"] for row in by_inputs if row["inputs_s"] > INPUTS_S},
    }


def markdown(result: dict[str, Any]) -> str:
    """A heading line, and for each size its counts and its table."""
    parts = [
        f"{result['world_size']} x {result['device']}, {result['backend']}, torch {result['torch']}, {result['date']}."
    ]
    for size, counts in result["summary"].items():
        rows = [row for row in result["rows"] if row["size"] == size]
        parts += [f"### Size {size}", *_sentences(counts), _table(rows)]
    return "\n\n".join(parts) + "\n"


def _sentences(counts: dict[str, Any]) -> list[str]:
    placed, captured = counts["placed"], counts["captured"]
    text = [f"{counts['measured']} of {counts['problems']} measured, {captured} of them as CUDA graphs too."]
    if placed:
        below = counts["below_half_of_peak"]
        text.append(
            f"{below} of {placed} ({below / placed:.0%}) stay below half of the peak, "
            f"{counts['captured_below_half_of_peak']} of {captured} as graphs. "
            f"What binds: {', '.join(f'{name} {number}' for name, number in counts['binds'].items())}."
        )
    if counts["compared_with_published"]:
        text.append(
            f"Slower than published by more than {SLOWER - 1:.0%}: "
            f"{_list(counts['slower_than_published'], '{} ({:.2f})')} of {counts['compared_with_published']}."
        )
    if counts["measured"]:
        text.append(f"Slowest inputs: {_list(counts['slowest_inputs_s'], '{} ({:.2f} s)')}.")
    if counts["not_measured"]:
        text.append("Not measured: " + "; ".join(f"{name}: {why}" for name, why in counts["not_measured"].items()))
    return text


def _list(named: dict[str, float], form: str) -> str:
    return ", ".join(form.format(name, value) for name, value in named.items()) or "none"


def _table(rows: Sequence[Row]) -> str:
    """Times are lower quartiles over blocks of the last rank's time."""
    compared = any("published_us" in row for row in rows)
    head = ["problem", "baseline, us", "spread", "as a graph, us", "ceiling, us", "binds", "utilisation", "graph's"]
    head += ["published, us", "mean over published"] if compared else []
    lines = [head, ["---"] * len(head)]
    for row in rows:
        if "eager" not in row:
            continue
        eager, graph = row["eager"], row.get("graph")
        cells = [
            row["problem"],
            _number(eager["lower_quartile_us"]),
            f"{eager['spread']:.0%}",
            _number(graph["lower_quartile_us"]) if graph else "-",
            _number(row.get("ceiling_us")),
            row.get("binds") or "-",
            _share(row.get("utilisation")),
            _share(row.get("graph_utilisation")),
        ]
        if compared:
            ratio = row.get("mean_over_published")
            cells += [_number(row.get("published_us")), "-" if ratio is None else f"{ratio:.2f}"]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float | None) -> str:
    """Three digits that count, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
