"""`pkb export`: prompts, and a corpus of conversations whose every submission was really judged."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.envs.text.turn import DEFAULT_STYLE, STYLES

from .command import EXIT_STATUSES, Session, Status, add_parser, stderr
from .export_harbor import EXAMPLE as HARBOR_EXAMPLE
from .export_harbor import add_evaluator_option, register_harbor
from .export_lessons import EXAMPLE as LESSONS_EXAMPLE
from .export_lessons import register_lessons
from .export_results import EXAMPLE as RESULTS_EXAMPLE
from .export_results import add_to_folder, command_of, register_results
from .options import positive_float, positive_int

if TYPE_CHECKING:
    from pkb_gym.corpus.evaluate import Candidate
    from pkb_gym.engine.evaluators.evaluator import Evaluator
    from pkb_gym.engine.records.feedback import Feedback
    from pkb_gym.engine.records.machine import Machine

PROMPTS_EXAMPLE = """pkb export prompts --out data --problems train --language cpp --sizes tiny --world-size 2
pkb export prompts --out data --problems families --language cuda --style brief --seeds 4 --variations 6"""
CORPUS_EXAMPLE = """pkb export corpus --out data --language cpp --world-size 2 --variants-per-problem 40
pkb export corpus --out data --language cuda --sizes published --evaluator http://127.0.0.1:8321 --jobs 16"""
COUNTS_EXAMPLE = "pkb export counts data --markdown"
DEFAULT_JOBS = 4


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb export` and what it exports."""
    export = add_parser(
        commands,
        "export",
        run_counts,  # until the kind of data set is known
        summary="Write data sets: prompts, a corpus of judged conversations, lessons, results, and tasks for Harbor.",
        example=f"{PROMPTS_EXAMPLE}\n{CORPUS_EXAMPLE}\n{LESSONS_EXAMPLE}\n{RESULTS_EXAMPLE}\n{HARBOR_EXAMPLE}\n{COUNTS_EXAMPLE}",
    )
    kinds = export.add_subparsers(title="what is exported", metavar="KIND", required=True)
    _register_prompts(kinds)
    _register_corpus(kinds)
    register_lessons(kinds)
    register_results(kinds)
    register_harbor(kinds)
    _register_counts(kinds)


def _register_prompts(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_parser(
        kinds,
        "prompts",
        run_prompts,
        summary="Write the prompt of each problem, as a folder for `datasets` and as JSON lines.",
        example=PROMPTS_EXAMPLE,
    )
    _add_common_options(parser, default_problems="train")
    parser.add_argument(
        "--language",
        nargs="+",
        choices=("cpp", "cuda", "python"),
        default=["cpp"],
        help="language of the kernels (default: cpp)",
    )
    parser.add_argument(
        "--seeds",
        type=positive_int,
        default=1,
        metavar="N",
        help="rows of each prompt, each with other inputs (default: 1)",
    )
    parser.add_argument(
        "--held-out",
        type=_natural,
        default=2,
        metavar="N",
        help="held-out prompts of each problem and size: axes and dtypes that no training row has (default: 2)",
    )
    parser.add_argument(
        "--test-problems", action="store_true", help="add the problems of the split's test part to the held-out prompts"
    )


def _register_corpus(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_parser(
        kinds,
        "corpus",
        run_corpus,
        summary="Evaluate kernels with knobs, and ways to break them, and write them as conversations; called again, "
        "it continues.",
        example=CORPUS_EXAMPLE,
        exit_statuses=EXIT_STATUSES,
    )
    _add_common_options(parser, default_problems="families")
    parser.add_argument(
        "--language", choices=("cpp", "cuda"), default="cpp", help="language of the kernels (default: cpp)"
    )
    parser.add_argument(
        "--variants-per-problem", type=positive_int, default=40, metavar="N", help="kernels to try (default: 40)"
    )
    parser.add_argument(
        "--repairs-per-problem", type=_natural, default=20, metavar="N", help="broken kernels to try (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all choices and inputs (default: 0)")
    parser.add_argument(
        "--jobs", type=positive_int, default=DEFAULT_JOBS, metavar="N", help="evaluations at a time (default: 4)"
    )
    parser.add_argument(
        "--max-minutes",
        type=positive_float,
        metavar="M",
        help="begin no evaluation after M minutes; call again to continue",
    )
    parser.add_argument(
        "--timing-budget",
        type=positive_float,
        default=0.3,
        metavar="S",
        help="seconds of timing for each kernel (default: 0.3)",
    )
    parser.add_argument(
        "--timeout", type=positive_float, default=10.0, metavar="S", help="deadline of a block of calls in seconds"
    )
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="treat kernels that compile as right where the machine that judges cannot run them, unchecked",
    )


def _register_counts(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_parser(
        kinds, "counts", run_counts, summary="Count the rows of a corpus.", example=COUNTS_EXAMPLE, exit_statuses=""
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that `pkb export corpus` wrote")
    parser.add_argument("--markdown", action="store_true", help="print tables instead of the manifest")


def _add_common_options(parser: argparse.ArgumentParser, default_problems: str) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    add_evaluator_option(parser)
    parser.add_argument(
        "--problems",
        nargs="+",
        default=[default_problems],
        metavar="NAME",
        help="problems of the train split; or train: all of them; or families: those with a family of kernels "
        f"(default: {default_problems})",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        metavar="SIZE",
        help="named sizes, or axes as JSON objects (default: published on GPUs, else tiny)",
    )
    parser.add_argument(
        "--world-size", type=positive_int, metavar="N", help="ranks (default: 1, 2, 4 or 8, as GPUs allow; 4 without)"
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        default=DEFAULT_STYLE,
        help=f"length of tasks; brief, for small models, shortens feedback too (default: {DEFAULT_STYLE})",
    )
    parser.add_argument(
        "--variations",
        type=_natural,
        default=0,
        metavar="N",
        help="further workloads of each problem and size: larger dimensions, other dtypes (default: 0)",
    )


def run_prompts(args: argparse.Namespace, session: Session) -> int:
    """Writes prompts.

    Raises:
        ConfigError, SizeError: what is asked for makes no sense.
    """
    from pkb_gym.corpus.files import write_prompts
    from pkb_gym.corpus.manifest import origin
    from pkb_gym.corpus.prompts import PromptRow, prompt_rows
    from pkb_gym.corpus.tasks import train_problems
    from pkb_gym.envs.suite import split_names
    from pkb_gym.problems.catalogue import find_problem

    parts: dict[str, list[PromptRow]] = {"train": [], "held_out": []}
    machine = _machine(args)
    for language in args.language:
        problems = train_problems(args.problems, language)
        common = {
            "languages": [language],
            "world_size": _world_size(args, language, machine),
            "style": args.style,
            "machine": machine,
        }
        sizes = _sizes(args, language, machine)
        parts["train"] += prompt_rows(
            problems, sizes=sizes, seeds=args.seeds, part="train", variations=args.variations, **common
        )
        parts["held_out"] += prompt_rows(
            problems, sizes=sizes, seeds=1, part="held_out", variations=args.held_out, **common
        )
        if args.test_problems:
            test = [find_problem(name) for name in split_names("test")]
            parts["held_out"] += prompt_rows(test, sizes=sizes, seeds=1, part="train", variations=0, **common)
    write_prompts(args.out, parts)
    counts = {part: len(rows) for part, rows in parts.items()}
    add_to_folder(args.out, "prompts", origin(command_of(session)) | {"rows": counts, "style": args.style})
    stderr().print(f"{counts['train']} training prompts and {counts['held_out']} held-out ones in {args.out}")
    return Status.PASSED


def run_corpus(args: argparse.Namespace, session: Session) -> int:
    """Makes a corpus.

    Raises:
        PkbError: what is asked for makes no sense, or this machine could not even begin.
    """
    from pkb_gym.corpus.evaluate import BatchEvaluator, TimeLimits
    from pkb_gym.corpus.files import write_corpus
    from pkb_gym.corpus.journal import FeedbackJournal
    from pkb_gym.corpus.make import CorpusPlan, make_corpus
    from pkb_gym.corpus.manifest import corpus_counts, origin
    from pkb_gym.corpus.tasks import train_problems
    from pkb_gym.engine.evaluators.caching import CachingEvaluator

    machine = _machine(args)
    plan = CorpusPlan(
        problems=train_problems(args.problems, args.language),
        language=args.language,
        sizes=_sizes(args, args.language, machine),
        world_size=_world_size(args, args.language, machine),
        style=args.style,
        variants=args.variants_per_problem,
        repairs=args.repairs_per_problem,
        variations=args.variations,
        seed=args.seed,
        compile_only=args.compile_only,
        machine=machine,
    )
    deadline = None if args.max_minutes is None else time.monotonic() + 60 * args.max_minutes
    limits = TimeLimits(timing_budget_s=args.timing_budget, timeout_s=args.timeout)
    with FeedbackJournal(args.out / "evaluations.jsonl") as journal, _evaluator(args.evaluator, session) as evaluator:
        cache, progress = CachingEvaluator(evaluator, store=journal), _Progress(len(journal))
        batches = BatchEvaluator(cache, limits, jobs=args.jobs, deadline=deadline, report=progress)
        corpus = make_corpus(plan, batches, lambda text: stderr().print(text, soft_wrap=True))
        write_corpus(args.out, corpus.rows)
    counts = corpus_counts(corpus.rows, corpus.left_out)
    unanswered = {"faults_of_this_machine": batches.faults, "left": batches.left}
    add_to_folder(args.out, "corpus", origin(command_of(session)) | {"style": args.style} | counts | unanswered)
    _print_result(args, len(corpus.rows), corpus.left_out.compiled_only, batches.faults, batches.left)
    return Status.NOT_JUDGED if batches.faults or not corpus.rows else Status.PASSED


def run_counts(args: argparse.Namespace, _session: Session) -> int:
    """Prints what a folder holds.

    Raises:
        ConfigError: it holds no corpus.
    """
    from pkb_gym.corpus.files import read_corpus
    from pkb_gym.corpus.manifest import markdown

    rows = read_corpus(args.folder)
    print(markdown(rows) if args.markdown else (args.folder / "manifest.json").read_text(encoding="utf-8").rstrip())
    return Status.PASSED


class _Progress:
    """Prints a line for each new result."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, candidate: Candidate, feedback: Feedback) -> None:
        from pkb_gym.corpus.make import result_line

        self._count += 1
        stderr().print(f"[{self._count}] {result_line(candidate, feedback)}", soft_wrap=True)


@contextmanager
def _evaluator(name: str, session: Session) -> Iterator[Evaluator]:
    """The evaluator of that name; one of this machine's is closed at the end."""
    from pkb_gym.envs.evaluator_registry import find_evaluator

    if name != "local":
        yield find_evaluator(name)
        return
    evaluator = session.open_evaluator(None)
    try:
        yield evaluator
    finally:
        evaluator.close()


def _print_result(args: argparse.Namespace, rows: int, compiled_only: int, faults: int, left: int) -> None:
    console = stderr()
    console.print(f"{rows} conversations in {args.out}", soft_wrap=True)
    if compiled_only:
        console.print(
            f"{compiled_only} kernels were compiled and nothing was run: this machine has no GPU. None of them became "
            "a conversation; --compile-only treats them as right",
            soft_wrap=True,
        )
    if faults:
        console.print(f"{faults} evaluations had an infrastructure failure; the same command repeats them")
    if left:
        console.print(f"{left} evaluations are left; the same command continues")


def _machine(args: argparse.Namespace) -> Machine | None:
    """The machine that judges; None for this one."""
    from pkb_gym.envs.evaluator_registry import find_machine

    return None if args.evaluator == "local" else find_machine(args.evaluator)


def _world_size(args: argparse.Namespace, language: str, machine: Machine | None) -> int:
    from pkb_gym.engine.records.config import default_world_size
    from pkb_gym.engine.stages.execution_environment import this_machine

    if args.world_size is not None:
        return int(args.world_size)
    judge = machine or this_machine()
    return default_world_size(len(judge.gpu_names) if judge.choose_device("auto", language) == "cuda" else 0)


def _sizes(args: argparse.Namespace, language: str, machine: Machine | None) -> list[str]:
    from pkb_gym.engine.stages.execution_environment import this_machine

    judge = machine or this_machine()
    return args.sizes or (["published"] if judge.choose_device("auto", language) == "cuda" else ["tiny"])


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 0 or more")
    return int(text)
