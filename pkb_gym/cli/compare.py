"""`pkb compare`: two agents, problem by problem."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.printable import printable

from .command import Session, Status, add_json_option, add_parser, plain_table, print_table, stderr, stdout
from .results_options import RESULTS_HELP, read_agent

if TYPE_CHECKING:
    from pkb_gym.metrics.comparison import AgentComparison

EXAMPLE = """pkb compare before.jsonl after.jsonl
pkb compare sft=runs/sft grpo=runs/grpo --baseline captured"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb compare`."""
    parser = add_parser(
        commands,
        "compare",
        run,
        summary="Compare the results of two agents, problem by problem: paired differences with intervals.",
        example=EXAMPLE,
    )
    parser.add_argument("a", metavar="A", help=RESULTS_HELP)
    parser.add_argument("b", metavar="B", help="the other results; differences are B - A")
    parser.add_argument(
        "--baseline",
        choices=("eager", "captured", "registered"),
        default="eager",
        help="baseline of the speedups: as it is, as CUDA graphs, or as these on registered memory (default: eager)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare across devices, ranks, sizes, dtypes, protocols and versions of problems as well",
    )
    add_json_option(parser, "the comparison")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Prints the comparison.

    Raises:
        ConfigError: results cannot be read, are those of several agents, share no problem, or were judged under
            different conditions.
    """
    from pkb_gym.engine.records.conditions import condition_differences
    from pkb_gym.metrics.comparison import compare
    from pkb_gym.metrics.groups import conditions_by_problem, differences_text
    from pkb_gym.metrics.reach import target_speedups

    (a, of_a), (b, of_b) = read_agent(args.a), read_agent(args.b)
    differing = condition_differences(conditions_by_problem(of_a), conditions_by_problem(of_b))
    found = compare(a, b, args.baseline, target_speedups(of_a), differing)
    if found is None:
        raise ConfigError(f"{args.a} and {args.b} share no problem that was judged in both")
    if differing:
        why = f"{args.a} and {args.b} were judged under different conditions: {differences_text(differing)}"
        if not args.force:
            raise ConfigError(f"{why}. --force compares them all the same")
        stderr().print(why, soft_wrap=True)
    if args.json:
        print(found.model_dump_json())
    else:
        _print(found)
    return Status.PASSED


def _print(found: AgentComparison) -> None:
    from pkb_gym.metrics.reach_text import reach_text

    console, a, b = stdout(), printable(found.a), printable(found.b)
    table = plain_table()
    table.add_column("metric", no_wrap=True)
    for name in ("A", "B", "B - A", "95 % interval", "problems"):
        table.add_column(name, no_wrap=True, justify="right")
    for each in found.differences:
        d = each.difference
        interval = "" if d.low is None or d.high is None else f"{d.low:+.3f} to {d.high:+.3f}"
        table.add_row(each.metric, f"{each.a:.3f}", f"{each.b:.3f}", f"{d.mean:+.3f}", interval, str(d.clusters))
    console.print(f"A: {a}\nB: {b}\nspeedups over the {found.baseline} baseline; {found.problems} problems in both\n")
    print_table(console, table)
    for what in ("right", "faster"):
        for gained, word in ((True, "only B"), (False, "only A")):
            flips = [flip for flip in found.flips if flip.what == what and flip.gained == gained]
            if flips:
                names = ", ".join(f"{printable(flip.problem)} ({flip.a} -> {flip.b})" for flip in flips)
                console.print(f"{what}, {word}: {names}", soft_wrap=True)
    if not found.flips:
        console.print("no problem flipped")
    if found.reach is not None:
        console.print(f"B as fast as A's best kernel: {printable(reach_text(found.reach))}", soft_wrap=True)
    for problems, word in ((found.only_a, "A"), (found.only_b, "B")):
        if problems:
            console.print(f"only in {word}, not compared: {', '.join(map(printable, problems))}", soft_wrap=True)
