"""`pkb export harbor`: a task folder for each problem."""

from __future__ import annotations

import argparse
from pathlib import Path

from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES

from .command import Session, Status, add_parser, stderr
from .options import positive_int

EXAMPLE = "pkb export harbor --out tasks --language cpp --world-size 2 --size tiny"


def add_evaluator_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--evaluator`, whose machine the prompts are about."""
    parser.add_argument(
        "--evaluator",
        default="local",
        metavar="ADDRESS",
        help="evaluator that will judge: local, ray, or the url of a service, with the token in PKB_TOKEN; prompts are "
        "about its machine (default: local)",
    )


def register_harbor(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb export harbor`."""
    parser = add_parser(
        kinds,
        "harbor",
        run_harbor,
        summary="Write task folders for Harbor, whose verifier evaluates the kernel on `pkb serve`.",
        example=EXAMPLE,
        exit_statuses="",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the task folders")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="problems (default: all)")
    parser.add_argument(
        "--language", choices=("cpp", "cuda"), default="cpp", help="language of the kernels (default: cpp)"
    )
    parser.add_argument("--world-size", type=positive_int, default=4, metavar="N", help="ranks (default: 4)")
    parser.add_argument("--size", default="tiny", help="a named size (default: tiny)")
    parser.add_argument("--until", choices=("check", "time", "profile"), default="profile", help="last stage")
    add_evaluator_option(parser)
    parser.add_argument(
        "--style", choices=STYLES, default=DEFAULT_STYLE, help=f"length of the instruction (default: {DEFAULT_STYLE})"
    )
    parser.add_argument("--reward", default="default", metavar="NAME", help="a preset (default: default)")


def run_harbor(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes task folders.

    Raises:
        ConfigError, SizeError: what is asked for makes no sense.
    """
    from pkb_gym.adapters.harbor.task_folder import HarborTask, write_task
    from pkb_gym.engine.errors import ConfigError
    from pkb_gym.engine.records.config import EvalConfig
    from pkb_gym.envs.evaluator_registry import find_machine
    from pkb_gym.envs.suite import split_names
    from pkb_gym.problems.catalogue import catalogue, find_problem
    from pkb_gym.rewards.presets import PRESETS

    if args.reward not in PRESETS:
        raise ConfigError(f"no preset of rewards {args.reward!r}; expected one of {', '.join(PRESETS)}")
    problems = list(catalogue())
    if args.problems is not None:
        problems = [find_problem(name) for name in split_names(args.problems)]
    config = EvalConfig(
        device="cpu" if args.language == "cpp" else "cuda",
        world_size=args.world_size,
        size=args.size,
        language=args.language,
        until=args.until,
    )
    tasks = [HarborTask(problem, config, args.language, args.reward, args.style) for problem in problems]
    machine = find_machine(args.evaluator)
    for task in tasks:
        write_task(args.out, task, machine)
    experts = sum(task.expert is not None for task in tasks)
    stderr().print(f"{len(tasks)} tasks in {args.out}, {experts} with a solution", soft_wrap=True)
    return Status.PASSED
