"""`pkb show`: one problem, as an author of kernels needs to know it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pkb_gym.cli.host_tools import hardware_for, why_no_peaks
from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.hardware.peaks import HardwareSpec
from pkb_gym.engine.problem import Cost, Problem
from pkb_gym.engine.problem.axes import Axes, AxisValue
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.stages.execution_environment import resolve_here, this_machine
from pkb_gym.engine.stages.roofline import place
from pkb_gym.envs.text.formatting import decimal_text, time_text
from pkb_gym.envs.text.task import LANGUAGES, task_text
from pkb_gym.envs.text.turn import STYLES
from pkb_gym.problems.catalogue import choose_problem

from .command import Session, Status, add_json_option, add_parser, plain_table, print_table, stdout
from .listing import ListedProblem
from .options import add_machine_options, machine_config
from .problem_options import PROBLEM_HELP, add_problem_option, register_problems, undeclared_text
from .shapes import shape_texts
from .show_expert import print_expert

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = "pkb show SampleSort --world-size 2 --size published"
WORK = {
    "matrix_flops": "flop",
    "vector_flops": "flop",
    "memory_bytes": "B",
    "link_in_bytes": "B",
    "link_out_bytes": "B",
}
"""Kinds of work -> their unit."""

NAMED_SIZES = ("tiny", "published", "large")


@dataclass(frozen=True)
class Work:
    """Every rank's cost and least work, and where they place a call on this machine; None where that is unknown."""

    costs: tuple[Cost, ...]
    least: tuple[Cost, ...]
    argument: str
    roofline: Roofline | None


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb show`."""
    parser = add_parser(
        commands,
        "show",
        run,
        summary="Show a problem: its task, C++ signature, shapes, cost, roofline and lower bound.",
        example=EXAMPLE,
    )
    parser.add_argument("problem", metavar="NAME", help=PROBLEM_HELP)
    add_problem_option(parser)
    add_machine_options(parser)
    parser.add_argument("--style", choices=STYLES, default="full", help="length of the task text (default: full)")
    parser.add_argument(
        "--expert", action="store_true", help="the known-good kernel and its measured times, in place of all else"
    )
    add_json_option(parser, "one record")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Prints the problem.

    Raises:
        PkbError: no such problem or expert, its axes do not fit together, or this machine could not be measured.
    """
    register_problems(args)
    problem = choose_problem(args.problem)
    config = resolve_here(machine_config(args), problem)
    if args.expert:
        print_expert(problem, config, args.json)
        return Status.PASSED
    hardware = hardware_for(config.device)  # measured once, before the machine is described
    work = work_of(problem, config, hardware)
    sizes: dict[str, str | Mapping[str, AxisValue]] = {name: name for name in NAMED_SIZES}
    if not isinstance(config.size, str):
        sizes["as asked"] = config.size_argument
    shapes = {name: shapes_of(problem, size, config) for name, size in sizes.items()}
    text = task_text(problem, config, LANGUAGES[config.device], this_machine(), args.style)
    if args.json:
        print(json.dumps(_record(problem, config, text, shapes, work), indent=2))
    else:
        _print(problem, config, text, shapes, work)
    return Status.PASSED


def work_of(problem: Problem, config: ResolvedConfig, hardware: HardwareSpec | None) -> Work | None:
    """The work of each rank and, where peaks are known, the roofline that follows; None where it is not declared."""
    if problem.undeclared:
        return None
    ranks = [_axes(problem, config.size_argument, config, rank) for rank in range(config.world_size)]
    return Work(
        tuple(problem.cost(ax) for ax in ranks),
        tuple(problem.least_cost(ax) for ax in ranks),
        problem.least_work.argument,
        None if hardware is None else place(problem, [ranks], hardware),
    )


def shapes_of(problem: Problem, size: str | Mapping[str, AxisValue], config: ResolvedConfig) -> dict[str, str] | str:
    """Name of each argument and output -> its shape or value, or in words why the size does not fit."""
    try:
        ranks = [_axes(problem, size, config, rank) for rank in range(config.world_size)]
    except SizeError as error:
        return str(error)
    return shape_texts(problem, ranks)


def _axes(problem: Problem, size: str | Mapping[str, AxisValue], config: ResolvedConfig, rank: int) -> Axes:
    return problem.axes(
        size=size, world_size=config.world_size, rank=rank, dtype=config.dtype, protocol=config.protocol
    )


def _record(
    problem: Problem, config: ResolvedConfig, text: str, shapes: Mapping[str, dict[str, str] | str], work: Work | None
) -> dict[str, object]:
    return {
        **asdict(ListedProblem.of(problem)),
        "config": config.model_dump(mode="json"),
        "task": text,
        "cpp_signature": cpp_signature(problem),
        "shapes": shapes,
        "cost": None if work is None else [asdict(cost) for cost in work.costs],
        "least_work": None if work is None else [asdict(cost) for cost in work.least],
        "roofline": None if work is None or work.roofline is None else work.roofline.model_dump(mode="json"),
    }


def _print(
    problem: Problem, config: ResolvedConfig, text: str, shapes: Mapping[str, dict[str, str] | str], work: Work | None
) -> None:

    console = stdout()
    console.rule(f"{problem.name}: {', '.join(filter(None, (problem.upstream, problem.category)))}", align="left")
    console.print(text.rstrip(), soft_wrap=True)  # the signature is part of it
    console.rule(f"Shapes on {config.world_size} ranks, by size", align="left")
    fitting = {name: value for name, value in shapes.items() if isinstance(value, dict)}
    table = plain_table()
    table.add_column("name", no_wrap=True)
    for name in fitting:
        table.add_column(name, overflow="fold")
    for row in next(iter(fitting.values()), {}):
        table.add_row(row, *(value[row] for value in fitting.values()))
    print_table(console, table)
    for name, value in shapes.items():
        if isinstance(value, str):
            console.print(f"{name}: {value}", soft_wrap=True)

    size = config.size if isinstance(config.size, str) else "as asked"
    console.rule(f"Work of a rank, size {size}, {config.dtype}", align="left")
    if work is None:
        console.print(undeclared_text(problem), soft_wrap=True)
        return
    print_table(console, _work_table(work))
    console.print(f"least work: {work.argument}", soft_wrap=True)
    roofline = work.roofline
    if roofline is None:
        console.print(f"roofline: {why_no_peaks(config.device)}", soft_wrap=True)
        return
    binds = f"bound by {roofline.binds}" if roofline.binds else "there is nothing to do"
    console.print(f"roofline: {time_text(roofline.ceiling_us)} at the peaks ({binds})", soft_wrap=True)
    bound = roofline.lower_bound
    certain = f"by {bound.binds}" if bound.binds else "no work is certain"
    console.print(f"lower bound: no kernel is faster than {time_text(bound.time_us)} ({certain})", soft_wrap=True)
    console.print(f"peaks: {roofline.peaks_source}", soft_wrap=True)
    console.print(f"limits: {bound.limits_source}", soft_wrap=True)


def _work_table(work: Work) -> Table:

    table = plain_table()
    table.add_column("", no_wrap=True)
    for name in ("cost", "least work", "peak of a rank", "time at the peak")[: 2 if work.roofline is None else 4]:
        table.add_column(name, justify="right", no_wrap=True)
    for name, unit in WORK.items():
        amounts = (_amount([asdict(cost)[name] for cost in costs], unit) for costs in (work.costs, work.least))
        table.add_row(name, *amounts, *(_peak_cells(name, unit, work.roofline) if work.roofline else ()))
    return table


def _amount(values: Sequence[float], unit: str) -> str:
    """The amounts of all ranks."""
    low, high = min(values), max(values)
    return decimal_text(high, unit) if low == high else f"{decimal_text(low, unit)} .. {decimal_text(high, unit)}"


def _peak_cells(name: str, unit: str, roofline: Roofline) -> tuple[str, str]:
    """The peak that a kind of work runs at, and the time that follows."""
    peaks, times = roofline.peaks, roofline.times
    peak, time_us = {
        "matrix_flops": (peaks.matrix_flops_per_s, times.matrix_us),
        "vector_flops": (peaks.vector_flops_per_s, times.vector_us),
        "memory_bytes": (peaks.memory_bytes_per_s, times.memory_us),
        "link_in_bytes": (peaks.link_bytes_per_s, times.link_us),
        "link_out_bytes": (peaks.link_bytes_per_s, times.link_us),
    }[name]
    return decimal_text(peak, f"{unit}/s"), time_text(time_us)
