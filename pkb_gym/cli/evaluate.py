"""`pkb eval`: judges one source."""

from __future__ import annotations

import argparse
import secrets
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pkb_gym.cli.chrome_trace import chrome_trace
from pkb_gym.engine.errors import ConfigError, PkbError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.replay_key import KEY_BYTES
from pkb_gym.problems.catalogue import choose_problem

from .command import EXIT_STATUSES, Session, Status, add_json_option, add_parser, stderr, stdout
from .debug_options import add_debug_options, debug_config, open_for_debugging, print_files
from .evaluator_choice import add_evaluator_options, open_chosen
from .options import add_evaluation_options, add_reward_option, evaluation_config, parse_key
from .problem_options import PROBLEM_HELP, add_problem_option, register_problems, undeclared_text
from .progress import StageProgress
from .sources import language_of, read_source, write_file
from .verdict import print_card
from .watch import changes, saved_texts

STARTING_COMMAND = "starting the command"
"""Entry of `Feedback.durations_s`: the time from the start of the process of `pkb` to the evaluation."""
EXAMPLE = """pkb eval HyenaCP kernel.cpp --world-size 2 --size published
pkb eval AllReduce - --size M=256,N=512 --until check --json < kernel.cpp
pkb eval AllReduce kernel.cu --trace timeline.json
pkb eval AllReduce kernel.cu --device emulated --world-size 2
pkb eval AllReduce kernel.cpp --watch
pkb eval AllReduce kernel.cpp --sanitize address,undefined --keep run --dump wrong
pkb eval ./my_problem kernel.cpp"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb eval`."""
    parser = add_parser(
        commands,
        "eval",
        run,
        summary="Compile a source, run it on N ranks, check it, time it against the baseline, and print the feedback.",
        example=EXAMPLE,
        exit_statuses=EXIT_STATUSES,
    )
    parser.add_argument("problem", metavar="NAME", help=PROBLEM_HELP)
    parser.add_argument("file", metavar="FILE", help="a .cpp, .cu or .py file, or - for standard input")
    add_problem_option(parser)
    add_evaluation_options(parser)
    parser.add_argument(
        "--replay-key", type=parse_key, metavar="HEX", help="the key of an earlier run, for the same inputs again"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the profile's timeline there, as JSON for chrome://tracing or ui.perfetto.dev",
    )
    add_evaluator_options(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="evaluate again at each save of FILE, and print the changes; ends by Ctrl-C",
    )
    add_debug_options(parser)
    add_reward_option(parser)
    add_json_option(parser, "the feedback record")


def run(args: argparse.Namespace, session: Session) -> int:
    """Evaluates and prints.

    Raises:
        PkbError: the question makes no sense, or this machine could not even begin.
    """
    register_problems(args)
    problem = choose_problem(args.problem)
    if args.watch and args.file == "-":
        raise ConfigError("--watch needs a file that can be saved; standard input is read once")
    source = read_source(args.file)
    config = debug_config(language_of(args.file, evaluation_config(args)), args)
    if args.trace is not None:
        if config.until not in (None, "profile"):
            raise ConfigError(f"--trace needs the profile; leave out --until {config.until}")
        config = config.model_copy(update={"trace": True})
    key: bytes | None = args.replay_key
    if key is None and args.service is None:
        key = secrets.token_bytes(KEY_BYTES)
    with closing(open_for_debugging(args, key) or open_chosen(args, session, key)) as evaluator:
        before_s = {} if session.elapsed_s is None else {STARTING_COMMAND: session.elapsed_s()}

        def judge(text: str) -> Feedback:
            with StageProgress(problem.name) as progress:
                feedback = evaluator.evaluate(problem, text, config, progress)
            feedback = feedback.model_copy(update={"durations_s": {**before_s, **feedback.durations_s}})
            before_s.clear()  # a further one of `--watch` does not wait for it
            _print(args, session, problem, feedback, key)
            return feedback

        if args.watch:
            return _watch(args, judge)
        return exit_status(judge(source))


def _watch(args: argparse.Namespace, judge: Callable[[str], Feedback]) -> Status:
    """Judges at each save until Ctrl-C; the status is that of the last evaluation."""
    last: Feedback | None = None
    try:
        for text in saved_texts(lambda: read_source(args.file), Path(args.file)):
            try:
                feedback = judge(text)
            except PkbError as error:  # what was saved last may be put right by the next save
                if last is None:
                    raise
                stderr().print(f"error: {error}", soft_wrap=True)
            else:
                if last is not None:
                    stderr().print(changes(last, feedback), soft_wrap=True)
                last = feedback
            stderr().print(f"waiting for {args.file} to be saved; Ctrl-C ends", soft_wrap=True)
    except KeyboardInterrupt:
        return Status.INTERRUPTED if last is None else exit_status(last)
    raise AssertionError("--watch ends by Ctrl-C alone")


def _print(args: argparse.Namespace, session: Session, problem: Problem, feedback: Feedback, key: bytes | None) -> None:
    if args.trace is not None:
        write_trace(args.trace, feedback)
    print_files(args, feedback)
    if args.json:
        print(feedback.model_dump_json(indent=2))
    else:
        print_card(stdout(), problem, feedback, args.reward)
    if feedback.timing is not None and problem.undeclared:
        stderr().print(undeclared_text(problem), soft_wrap=True)
    if feedback.failure is Failure.COMPILED_ONLY and feedback.config.language == "cuda":
        stderr().print(f"on a model of GPUs, slowly and untimed: {emulated(session.argv)}", soft_wrap=True)
    if key is not None and feedback.failure not in (None, Failure.COMPILED_ONLY):
        stderr().print(f"again, on the same inputs: {again(session.argv, key.hex() + feedback.nonce)}", soft_wrap=True)


def write_trace(path: Path, feedback: Feedback) -> None:
    """Writes the timeline, or reports that there is none.

    Raises:
        ConfigError: the file cannot be written.
    """
    events = () if feedback.profile is None else feedback.profile.trace
    if not events:
        stderr().print(f"no trace was written: nothing was profiled (stage {feedback.stage})", soft_wrap=True)
        return
    title = f"{feedback.problem}, {feedback.config.world_size} ranks, {feedback.config.device}"
    write_file(path, chrome_trace(events, title))
    stderr().print(f"{len(events)} slices in {path}", soft_wrap=True)


def exit_status(feedback: Feedback) -> Status:
    """The exit status for a feedback, by the origin of its failure."""
    if feedback.failure in (Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY):
        return Status.NOT_JUDGED
    return Status.PASSED if feedback.passed else Status.FAILED


def again(argv: tuple[str, ...], replay_key: str) -> str:
    """The command line that repeats a run, inputs included."""
    given = any(word.split("=", 1)[0] == "--replay-key" for word in argv)
    arguments = ["pkb", *argv] if given else ["pkb", *argv, "--replay-key", replay_key]
    return shlex.join(arguments)


def emulated(argv: tuple[str, ...]) -> str:
    """The command line that evaluates on device "emulated".

    Example:
        >>> emulated(("eval", "DDP", "k.cu", "--device", "cuda", "--world-size=2"))
        'pkb eval DDP k.cu --world-size=2 --device emulated'
    """
    words = [word for word in argv if not word.startswith("--device=")]
    if "--device" in words:
        place = words.index("--device")
        del words[place : place + 2]
    return shlex.join(["pkb", *words, "--device", "emulated"])
