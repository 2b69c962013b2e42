"""Feedback for human eyes: a card for the terminal, and a picture of the roofline."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.emulation import Emulation
from pkb_gym.engine.records.feedback import LAST_OUTPUT, Failure, Feedback, Profile, RankProfile, Stage
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.records.timing import SpeedupOver
from pkb_gym.envs.text.feedback import race_check_text
from pkb_gym.envs.text.formatting import cut_middle, rate_text, size_text, three_digits, time_text
from pkb_gym.envs.text.kernels import COLUMNS as KERNEL_COLUMNS
from pkb_gym.envs.text.kernels import kernel_rows, kernels_left_out, transfers_text
from pkb_gym.envs.text.profile import times_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CARD_WIDTH = 100
BAR_WIDTH = 40
NAME_WIDTH = 20
"""Names of kernels are folded to this width where they must be; numbers are never cut off."""
MAX_LOG_LINES = 12
MAX_OUTPUT_LINES = 12
MAX_LINE_CHARS = 400
MAX_MISMATCHES = 2
MAX_FINDINGS = 4
MAX_RANKS = 8
CPU_COLUMNS = ("put", "got", "link")
GPU_COLUMNS = ("overlap", "a wait", "sent", "received")
PICTURE_INCHES = (6.4, 4.0)
PICTURE_DPI = 100


class Card(Panel):
    """A panel that knows how many columns its tables need.

    Attributes:
        least_width: Width of the console, in characters, below which numbers would be cut off.
    """

    least_width = 0


def card_text(
    problem: Problem, config: ResolvedConfig, feedback: Feedback | None, reward: float | None, width: int = CARD_WIDTH
) -> str:
    """The card as text with ANSI colours, see `card`."""
    shown = card(problem, config, feedback, reward)
    width = max(width, shown.least_width)
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def card(problem: Problem, config: ResolvedConfig, feedback: Feedback | None, reward: float | None) -> Card:
    """One submission at a glance: stages, compiler, correctness, time, roofline, profile, reward.

    Args:
        problem: Problem of the submission.
        config: Configuration of evaluations, shown where there is no feedback yet.
        feedback: Feedback on the submission; None before the first.
        reward: Reward of the submission; None where it has none.
    """
    used = config if feedback is None else feedback.config
    size = used.size if isinstance(used.size, str) else "custom size"
    title = f"[bold]{problem.name}[/] {used.world_size} ranks, {used.device}, {size}, {used.dtype}, {used.protocol}"
    if feedback is None:
        return Card(Text(f"{problem.summary}\n\nNothing was submitted yet."), title=title, title_align="left")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column()
    labelled = _rows(feedback, reward)
    for name, content in labelled:
        rows.add_row(name, content)
    shown = Card(rows, title=title, title_align="left", border_style=verdict_colour(feedback))
    frame = max(len(name) for name, _ in labelled) + len("│ ") + len("  ") + len(" │")
    shown.least_width = frame + max(_least_width(content) for _, content in labelled)
    return shown


def _least_width(content: RenderableType) -> int:
    """The columns that the tables in it need; texts are wrapped."""
    if isinstance(content, Group):
        return max(map(_least_width, content.renderables), default=0)
    if not isinstance(content, Table):
        return 0
    widths = []
    for column in content.columns:
        cells = [cell_len(str(cell)) for cell in (column.header, *column.cells)]
        widths.append(max(cells) if column.no_wrap else min(NAME_WIDTH, max(cells)))
    return sum(widths) + len("  ") * (len(widths) - 1)


def verdict_colour(feedback: Feedback) -> str:
    """Green for what passed, yellow for what was compiled and not run, red for what failed."""
    if feedback.failure is Failure.COMPILED_ONLY:
        return "yellow"
    return "green" if feedback.passed else "red"


def _rows(feedback: Feedback, reward: float | None) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = [("stages", _ladder(feedback))]
    if feedback.failure is not None:
        where = "" if feedback.failed_rank is None else f" on rank {feedback.failed_rank}"
        message = feedback.message.partition(LAST_OUTPUT)[0]  # the output has a row of its own
        failure = f"{feedback.failure}{where}: {cut_middle(message, 1000)}"
        rows.append(("failure", Text(failure, style=verdict_colour(feedback))))
    rows += [("integrity", Text(f"{found.code}: {found.detail}", style="red")) for found in feedback.integrity]
    if feedback.compile is not None:
        rows.append(("compiler", _compiler(feedback)))
    if feedback.config.ranks_per_gpu > 1:
        rows.append(("ranks", Text(f"{feedback.config.ranks_per_gpu} to a GPU: checked, not timed", style="yellow")))
    if feedback.config.debug:
        rows.append(("build", Text("debug: not timed, and no reward is given", style="yellow")))
    rows += [("sanitizer", Text(f"{report.sanitizer}: {report.summary}")) for report in feedback.sanitizers]
    if feedback.output.strip():
        rows.append(("output", _output(feedback.output)))
    if found := race_check_text(feedback.race_check):
        rows.append(("races", Text(found, style="yellow" if found.startswith("warning") else "green")))
    if feedback.emulation is not None:
        rows += [(name, text) for name, text in _detected(feedback.emulation, feedback.message)]
    if feedback.check is not None:
        rows.append(("check", _check(feedback)))
    if feedback.timing is not None:
        rows.append(("time", _time(feedback)))
    if feedback.roofline is not None:
        rows.append(("roofline", _roofline(feedback.roofline)))
    if feedback.profile is not None:
        rows.append(("profile", _profile(feedback.profile)))
    if reward is not None:
        rows.append(("reward", Text(f"{reward:.3f}", style="bold")))
    return rows


def _ladder(feedback: Feedback) -> Text:
    text = Text()
    reached = -1 if feedback.stage is None else feedback.stage.order
    for stage in Stage:
        if stage.order:
            text.append(" > ", style="dim")
        if stage.order <= reached:
            text.append(f"✓ {stage}", style="green")
        elif stage.order == reached + 1 and feedback.failure not in (None, Failure.COMPILED_ONLY):
            text.append(f"✗ {stage}", style="red")
        else:
            text.append(str(stage), style="dim")
    return text


def _compiler(feedback: Feedback) -> RenderableType:
    report = feedback.compile
    assert report is not None
    binary = "" if report.binary_bytes is None else f", {size_text(report.binary_bytes)}"
    head = Text(f"{report.duration_s:.2f} s{', cached' if report.cached else ''}{binary}")
    parts: list[RenderableType] = [head]
    lines = report.log.strip().splitlines()
    shown = lines[:MAX_LOG_LINES]
    if len(lines) > len(shown):
        shown.append(f"... {len(lines) - len(shown)} more lines")
    if shown:
        parts.append(Text("\n".join(shown), style="yellow"))
    if report.kernels:
        table = _table(*KERNEL_COLUMNS, names=1)
        for row in kernel_rows(report.kernels):
            table.add_row(*map(Text, row))
        notes = [*kernels_left_out(report.kernels), transfers_text(report.transfers)]
        parts += [table, Text("\n".join(notes))]
    return Group(*parts)


def _output(output: str) -> Text:
    lines = output.strip().splitlines()
    earlier = len(lines) - MAX_OUTPUT_LINES
    head = [f"... {earlier} earlier lines"] if earlier > 0 else []
    return Text("\n".join([*head, *(cut_middle(line, MAX_LINE_CHARS) for line in lines[-MAX_OUTPUT_LINES:])]))


def _detected(emulation: Emulation, message: str) -> Iterator[tuple[str, Text]]:
    """Findings of the detector that the failure does not hold already."""
    others = [finding for finding in emulation.findings if finding.text not in message]
    for finding in others[:MAX_FINDINGS]:
        style = "dim" if finding.finding_class == "benign" else "yellow"
        yield (finding.finding_class or "finding").replace("_", " "), Text(str(finding), style=style)


def _check(feedback: Feedback) -> RenderableType:
    check = feedback.check
    assert check is not None
    head = Text(
        f"{check.outputs_right} of {check.outputs_compared} outputs right in {check.trials} trials",
        style="green" if check.passed else "red",
    )
    others = [str(mismatch) for mismatch in check.mismatches if str(mismatch) not in feedback.message]
    return Group(head, *map(Text, others[:MAX_MISMATCHES]))


def _time(feedback: Feedback) -> RenderableType:
    timing = feedback.timing
    assert timing is not None
    leading = timing.leading
    other = ""
    if leading.baseline == "captured":
        other = f"; eager baseline {time_text(timing.baseline_us)}, {three_digits(timing.speedup)}x"
    elif timing.baseline_graph_us is not None:
        other = f"; baseline as CUDA graphs {time_text(timing.baseline_graph_us)}"
    if (registered := timing.over_registered) is not None:
        other += f"; on registered memory {time_text(registered.baseline_us)}, {three_digits(registered.speedup)}x"
    return Text.assemble(
        f"candidate {time_text(timing.candidate_us)}, ",
        f"baseline{' as CUDA graphs' if leading.baseline == 'captured' else ''} {time_text(leading.baseline_us)}, ",
        (f"{three_digits(leading.speedup)}x", speed_colour(leading)),
        f" [{three_digits(leading.low)}, {three_digits(leading.high)}]",
        f" over {len(timing.blocks)} pairs of blocks",
        "" if timing.converged else " (interval still wide)",
        other,
    )


def speed_colour(leading: SpeedupOver) -> str:
    """The style of a speedup: green where its interval lies above 1, red where it lies below."""
    return "bold green" if leading.low > 1 else "bold red" if leading.high < 1 else "bold"


def _roofline(roofline: Roofline) -> RenderableType:
    head = Text(f"ceiling {time_text(roofline.ceiling_us)}" + (f" by the {roofline.binds}" if roofline.binds else ""))
    lines = [head]
    for name, share in (("baseline", roofline.baseline_utilisation), ("candidate", roofline.candidate_utilisation)):
        if share is not None:
            lines.append(Text.assemble(f"{name:<10}", bar(share), f" {three_digits(100 * share)} %"))
    return Group(*lines)


def bar(share: float, width: int = BAR_WIDTH) -> Text:
    """A bar that is filled by a share of 1; red where the share is greater."""
    filled = round(width * min(1.0, max(0.0, share)))
    style = "red" if share > 1 else "cyan"
    return Text.assemble(("█" * filled, style), ("░" * (width - filled), "dim"))


def _profile(profile: Profile) -> RenderableType:
    ranks = profile.ranks[:MAX_RANKS]
    on_gpus = bool(ranks) and ranks[0].busy_us is not None
    table = _table("rank", "per call", "compute", "comm", "wait", "host", *(GPU_COLUMNS if on_gpus else CPU_COLUMNS))
    for rank in ranks:
        parts = (rank.compute_us, rank.communication_us, rank.waiting_us, rank.host_us)
        whole = sum(parts) or 1.0
        shares = [f"{100 * part / whole:.0f} %" for part in parts]
        moved = _gpu_cells(rank) if on_gpus else _cpu_cells(rank)
        table.add_row(str(rank.rank), time_text(rank.wall_us), *shares, *moved)
    if not on_gpus:
        return table
    kernels = "\n".join(times_table(profile.kernels)) if profile.kernels else ""
    found = f"transfers found: {', '.join(profile.mechanisms)}" if profile.mechanisms else ""
    return Group(table, *(Text(text) for text in (found, kernels) if text))


def _table(*columns: str, names: int = 0) -> Table:
    """An empty table of numbers; its first columns may hold names."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, column in enumerate(columns):
        is_name = place < names
        table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    return table


def _cpu_cells(rank: RankProfile) -> tuple[str, str, str]:
    link = "-" if rank.link_bytes_per_s is None else rate_text(rank.link_bytes_per_s)
    return size_text(rank.put_bytes), size_text(rank.got_bytes), link


def _gpu_cells(rank: RankProfile) -> tuple[str, str, str, str]:
    overlap = f"{100 * (rank.overlap_us or 0) / (rank.wall_us or 1):.0f} %"
    wait = "-" if rank.mean_wait_us is None else time_text(rank.mean_wait_us)
    links = ["-" if nbytes is None else size_text(nbytes) for nbytes in (rank.sent_bytes, rank.received_bytes)]
    return overlap, wait, links[0], links[1]


def roofline_picture(problem: Problem, config: ResolvedConfig, feedback: Feedback | None) -> NDArray[np.uint8]:
    """Time of each resource at its peak, the ceiling, baseline and candidate, on a log scale.

    Args:
        problem: Problem of the submission.
        config: Configuration of evaluations.
        feedback: Feedback on the submission; None before the first.

    Returns:
        (height, width, 3) uint8.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("render_mode 'rgb_array' needs matplotlib: pip install 'pkb-gym[plot]'") from error
    figure = Figure(figsize=PICTURE_INCHES, dpi=PICTURE_DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)  # partly unannotated
    axes: Any = figure.add_subplot()
    axes.set_title(f"{problem.name}: {config.world_size} ranks, {config.device}, {config.dtype}")
    _draw(axes, feedback)
    canvas.draw()
    import numpy as np  # loads slowly, and the card needs none

    return np.array(canvas.buffer_rgba(), np.uint8)[..., :3].copy()


def _draw(axes: Any, feedback: Feedback | None) -> None:  # noqa: ANN401  # matplotlib is an optional dependency
    if feedback is None or feedback.roofline is None or feedback.timing is None:
        why = "nothing was submitted yet" if feedback is None else f"not timed: {feedback.failure or feedback.stage}"
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    roofline, timing = feedback.roofline, feedback.timing
    times = roofline.times
    bars = {
        "matrix": (times.matrix_us, "tab:gray"),
        "vector": (times.vector_us, "tab:gray"),
        "memory": (times.memory_us, "tab:gray"),
        "link": (times.link_us, "tab:gray"),
        "baseline": (timing.baseline_us, "tab:orange"),
        "candidate": (timing.candidate_us, "tab:blue"),
    }
    shown = {name: bar for name, bar in bars.items() if bar[0] > 0}
    names = list(shown)[::-1]
    axes.barh(names, [shown[name][0] for name in names], color=[shown[name][1] for name in names])
    for name in names:
        axes.annotate(
            time_text(shown[name][0]), (shown[name][0], name), xytext=(3, 0), textcoords="offset points", va="center"
        )
    if roofline.ceiling_us > 0:
        axes.axvline(roofline.ceiling_us, color="tab:red", linestyle="--")
        axes.set_xlabel(f"time per call, us (dashed: ceiling{f' by the {roofline.binds}' if roofline.binds else ''})")
    axes.set_xscale("log")
    axes.margins(x=0.25)
