"""`pkb eval-dir`: judges a folder of sources, side by side, and resumes where it was stopped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pkb_gym.engine.errors import ConfigError, InfrastructureError, PkbError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt import Attempt, request_key
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.printable import on_one_line
from pkb_gym.engine.support.side_by_side import side_by_side
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.envs.text.formatting import time_text
from pkb_gym.problems.catalogue import all_problems
from pkb_gym.problems.source_files import Found, find_sources

from .command import (
    EXIT_STATUSES,
    NO_GPU,
    Session,
    Status,
    add_json_option,
    add_parser,
    print_table,
    resuming,
    stderr,
    stdout,
)
from .options import add_evaluation_options, add_reward_option, default_jobs, evaluation_config, positive_int
from .problem_options import add_problem_option, register_problems
from .results_file import ResultsFile
from .sources import language_of, read_source
from .verdict import cells, first_line, print_reasons, result_table, reward_of

EXAMPLE = """pkb eval-dir solutions/ --size published --world-size 2 --output results.jsonl
where solutions/ holds files such as hyena_cp.cpp, AllReduce.cpp and 72_hyena_forward_cp_cuda.py"""
DEFAULT_OUTPUT = "results.jsonl"


@dataclass
class FolderOutcome:
    """The results for the files.

    Attributes:
        judged: File name -> feedback, of this run or resumed.
        skipped: (file name, why it was not judged); no fault of a candidate.
        unjudged: File name -> feedback of infrastructure failures.
    """

    judged: dict[str, Feedback] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unjudged: list[tuple[str, str]] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """3 if anything could not be judged here, else 1 if a candidate failed, 2 if nothing was there to judge."""
        failures = [feedback.failure for feedback in self.judged.values()]
        if self.unjudged or not {Failure.INFRASTRUCTURE, Failure.COMPILED_ONLY}.isdisjoint(failures):
            return Status.NOT_JUDGED
        if not failures:
            return Status.USAGE
        return Status.PASSED if all(f.passed for f in self.judged.values()) else Status.FAILED


@dataclass(frozen=True)
class SourceFile:
    """One file to be judged."""

    file: str
    problem: Problem
    source: str


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb eval-dir`."""
    parser = add_parser(
        commands,
        "eval-dir",
        run,
        summary="Judge a folder of sources named by their problems, side by side; called again, it resumes.",
        example=EXAMPLE,
        exit_statuses=EXIT_STATUSES,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="its files are named by problem, or by upstream stem")
    add_problem_option(parser)
    add_evaluation_options(parser)
    parser.add_argument(
        "--jobs", type=positive_int, metavar="N", help="evaluations side by side; timing takes turns (default: cores)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"results, one JSON record a line; those already in it are not repeated (default: DIR/{DEFAULT_OUTPUT})",
    )
    add_reward_option(parser)
    add_json_option(parser, "the result records, one a line,")


def run(args: argparse.Namespace, session: Session) -> int:
    """Evaluates what is missing and prints a table of all.

    Raises:
        PkbError: the folder or the results file is of no use, or this machine could not even begin.
    """
    register_problems(args)
    config = evaluation_config(args)
    output: Path = args.output or args.folder / DEFAULT_OUTPUT
    found = find_sources(args.folder, all_problems(), ignore=output)
    if not found.candidates:
        names = ", ".join(path.name for path, _ in found.others) or "no files"
        raise ConfigError(f"nothing to judge in {args.folder}: {names}. Name files as `hyena_cp.cpp` (see: pkb list)")
    with ResultsFile(output, config) as results:
        outcome = FolderOutcome(skipped=[(path.name, why) for path, why in found.others])
        tasks = _open_tasks(found, results, outcome)
        _print_start(tasks, outcome, output)
        if tasks:
            jobs = min(args.jobs or default_jobs(), len(tasks))
            with resuming(), closing(session.open_evaluator(None)) as evaluator:
                _judge(evaluator, tasks, config, args.reward, jobs, results, outcome)
        in_order = [(path.name, problem) for path, problem in found.candidates if path.name in outcome.judged]
        if args.json:
            for name, _ in in_order:
                print(results.result(name).to_line())
        else:
            _print_table(in_order, outcome, args.reward)
    _list_others(outcome)
    return outcome.status


def _open_tasks(found: Found, results: ResultsFile, outcome: FolderOutcome) -> list[SourceFile]:
    """The sources without a result; what has one, or cannot be read, goes into the outcome."""
    tasks = []
    for path, problem in found.candidates:
        try:
            source = read_source(str(path))
        except ConfigError as error:
            outcome.skipped.append((path.name, str(error)))
            continue
        digest = source_sha256(source)
        if (feedback := results.judged(path.name, digest)) is not None:
            outcome.judged[path.name] = feedback
        else:
            tasks.append(SourceFile(path.name, problem, source))
    return tasks


def _judge(
    evaluator: Evaluator,
    tasks: Sequence[SourceFile],
    config: EvalConfig,
    reward: str,
    jobs: int,
    results: ResultsFile,
    outcome: FolderOutcome,
) -> None:
    """Judges the tasks on `jobs` threads; results are recorded here, by one thread, as they come."""
    console, width = stderr(), len(str(len(tasks)))

    def judge_one(task: SourceFile) -> tuple[Feedback, float]:
        began = time.monotonic()
        found = evaluator.evaluate(task.problem, task.source, language_of(task.file, config))
        return found, time.monotonic() - began

    with side_by_side(tasks, judge_one, jobs, name="eval-dir", give_up=evaluator.close) as done:
        for number in range(1, len(tasks) + 1):
            task, verdict = done.get()
            if isinstance(verdict, tuple):
                feedback, duration_s = verdict
                results.append(_result(task, feedback, duration_s, config, reward))
                outcome.judged[task.file] = feedback
                result = _in_brief(feedback)
            elif isinstance(verdict, PkbError):
                ours = isinstance(verdict, InfrastructureError)
                (outcome.unjudged if ours else outcome.skipped).append((task.file, str(verdict)))
                result = f"not judged: {verdict}"
            else:
                raise verdict
            console.print(f"[{number:>{width}}/{len(tasks)}] {on_one_line(task.file)}: {result}", soft_wrap=True)


def _result(task: SourceFile, feedback: Feedback, duration_s: float, requested: EvalConfig, reward: str) -> Attempt:
    return Attempt(
        problem=task.problem.name,
        file=task.file,
        requested=requested,
        request_key=request_key(task.problem.name, task.source, feedback),
        source=task.source,
        feedback=feedback,
        reward=reward_of(feedback, reward),
        reward_name=reward,
        duration_s=duration_s,
    )


def _print_start(tasks: Sequence[SourceFile], outcome: FolderOutcome, output: Path) -> None:
    resumed = f"{len(outcome.judged)} already judged, " if outcome.judged else ""
    stderr().print(f"{resumed}{len(tasks)} to judge; results in {output}", soft_wrap=True)


def _in_brief(feedback: Feedback) -> str:
    if feedback.failure is not None:
        return f"{feedback.failure} {first_line(feedback)}".strip()
    timing = feedback.timing
    return "passed" if timing is None else f"passed, {time_text(timing.candidate_us)}, {timing.leading.speedup:.2f}x"


def _print_table(in_order: Sequence[tuple[str, Problem]], outcome: FolderOutcome, reward: str) -> None:
    table = result_table("file", "problem")
    for name, problem in in_order:
        feedback = outcome.judged[name]
        table.add_row(on_one_line(name), problem.name, *cells(feedback, reward_of(feedback, reward)))
    passed = sum(outcome.judged[name].passed for name, _ in in_order)
    console = stdout()
    print_table(console, table)
    compiled = sum(outcome.judged[name].failure is Failure.COMPILED_ONLY for name, _ in in_order)
    unknown = f" {compiled} compiled and not run: {NO_GPU}." if compiled else ""
    console.print(f"{passed} of {len(in_order)} passed.{unknown}")
    print_reasons(console, [(on_one_line(name), f) for name, _ in in_order if not (f := outcome.judged[name]).passed])


def _list_others(outcome: FolderOutcome) -> None:
    console = stderr()
    for title, others in (("passed over", outcome.skipped), ("could not be judged here", outcome.unjudged)):
        for name, why in others:
            console.print(f"{title}: {on_one_line(name)}: {why}", soft_wrap=True)
