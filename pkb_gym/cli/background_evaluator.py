"""`pkb evaluator`: the background evaluators of this user."""

from __future__ import annotations

import argparse

from pkb_gym.engine.support import env_vars

from .command import Session, Status, add_parser, stdout

EXAMPLE = """pkb evaluator status
pkb evaluator stop"""
EXIT = "exit status: 0 done, 3 an evaluator does not end"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb evaluator`."""
    parser = add_parser(
        commands,
        "evaluator",
        run,
        summary="Show or end the background evaluators that `pkb eval` has started.",
        example=EXAMPLE,
        exit_statuses=EXIT,
    )
    parser.add_argument("action", choices=("status", "stop"), help="list them, or end them and their evaluations")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Lists or ends them.

    Raises:
        ConfigError: a package is missing, or the folder of sockets cannot be used.
    """
    from pkb_gym.serve.background import running, stop

    console, status, found = stdout(), Status.PASSED, 0
    for each in running(env_vars.runtime_dir()):
        found += 1
        if args.action == "status":
            at = each.status
            doing = "it does not answer" if at is None else "idle" if each.is_idle else f"{at.running} running"
            done = "" if at is None else f", {at.finished} evaluations in {at.uptime_s:.0f} s"
            console.print(f"process {each.pid}: {doing}{done}; {each.socket}", soft_wrap=True)
        elif stop(each):
            console.print(f"process {each.pid} has ended", soft_wrap=True)
        else:
            console.print(f"process {each.pid} does not end; {each.socket.with_suffix('.log')}", soft_wrap=True)
            status = Status.NOT_JUDGED
    if not found:
        console.print("no background evaluator runs")
    return status
