"""`pkb demo`: three problems, each with a naive, a wrong and an expert kernel, and what the evaluator says of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.starters import make_starter

from .command import Session, Status, add_parser, print_table, stderr, stdout
from .evaluate import exit_status
from .progress import StageProgress
from .verdict import cells, print_card, print_reasons, result_table, reward_of

EXAMPLE = "pkb demo"
JOBS = 4
"""Evaluations side by side before anything is timed."""

# On the CPU, which every machine has, and small. The deadline is short because one of the attempts waits for ever.
CONFIG = EvalConfig(device="cpu", world_size=4, size="tiny", timeout_s=1.0)

COMPILE_ONLY = CONFIG.model_copy(update={"until": "compile"})


@dataclass(frozen=True)
class Lesson:
    """One problem of the demo.

    Attributes:
        problem: its name.
        slip: (right, wrong), the piece of the naive source that the wrong attempt has otherwise.
        what: the slip in words.
        expected: how the wrong attempt fails.
    """

    problem: str
    slip: tuple[str, str]
    what: str
    expected: Failure


LESSONS = (
    Lesson(
        "HyenaCP",
        slip=("if (!zigzag) return r * l + i;", "if (!zigzag || i >= 0) return r * l + i;"),
        what="overlooks that time is laid out in zigzag",
        expected=Failure.OUTPUT_MISMATCH,
    ),
    Lesson(
        "AllReduce",
        slip=("comm.peer(x, r)", "comm.peers(x, r)"),
        what="misspells a function",
        expected=Failure.COMPILE_ERROR,
    ),
    Lesson(
        "SampleSort",
        slip=("  comm.barrier(group);\n\n", "  if (comm.rank == 0) return;\n  comm.barrier(group);\n\n"),
        what="lets rank 0 return before the first barrier",
        expected=Failure.DEADLOCK,
    ),
)


@dataclass(frozen=True, eq=False)
class Attempt:
    """One source for one problem."""

    problem: Problem
    name: Literal["naive", "wrong", "expert"]
    source: str

    @property
    def is_wrong(self) -> bool:
        """Whether it is meant to fail, so that it is never timed."""
        return self.name == "wrong"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb demo`."""
    add_parser(
        commands,
        "demo",
        run,
        summary="Judge a naive, a wrong and an expert kernel of three problems on four CPU ranks.",
        example=EXAMPLE,
        exit_statuses="exit status: 0 everything was judged, 3 this machine could not judge something",
    )


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Evaluates the attempts and prints a table for each problem, and one card.

    Raises:
        PkbError: this machine could not even begin.
    """
    began = time.monotonic()
    with StageProgress("demo") as progress, closing(session.open_evaluator(None)) as evaluator:
        judged = judge(evaluator, attempts(), progress)
    console = stdout()
    console.print("Three problems on 4 ranks of the CPU, size tiny. Time is per call, against PyTorch + gloo.")
    console.print("Reward: 1 is right and as fast as the baseline, 2 at the roofline. See docs/feedback.md.\n")
    for lesson in LESSONS:
        rows = [(attempt.name, feedback) for attempt, feedback in judged if attempt.problem.name == lesson.problem]
        problem = find_problem(lesson.problem)
        console.rule(problem.name, align="left")
        console.print(f"{problem.summary}\n")
        table = result_table("attempt")
        for name, feedback in rows:
            table.add_row(name, *cells(feedback, reward_of(feedback)))
        print_table(console, table)
        console.print(f"The wrong one {lesson.what}; the evaluator says:")
        print_reasons(console, [row for row in rows if row[1].failure is not None])
        console.print()
    shown = next(f for attempt, f in judged if attempt.problem.name == "HyenaCP" and attempt.name == "expert")
    console.print("All that is known of one attempt, the expert's HyenaCP (`pkb eval HyenaCP FILE` prints this):")
    print_card(console, find_problem("HyenaCP"), shown)
    console.print("Next: pkb list, pkb show HyenaCP, pkb eval HyenaCP your_kernel.cpp --device cpu")
    if gpus.names():
        console.print("On the GPUs of this machine: pkb show HyenaCP, pkb eval HyenaCP your_kernel.cu")
    stderr().print(f"{time.monotonic() - began:.1f} s")
    ours = any(exit_status(feedback) is Status.NOT_JUDGED for _, feedback in judged)
    return Status.NOT_JUDGED if ours else Status.PASSED


def attempts() -> list[Attempt]:
    """Three for each problem, in the order in which they are shown.

    Raises:
        InfrastructureError: the package lacks an expert.
    """
    made = []
    for lesson in LESSONS:
        problem = find_problem(lesson.problem)
        naive = make_starter(problem, "cpp").source
        expert = expert_source(problem, "cpp")
        if expert is None:
            raise InfrastructureError(f"{problem.name} has no expert.cpp; is the installation complete?")
        wrong = naive.replace(*lesson.slip)
        made += [Attempt(problem, "naive", naive), Attempt(problem, "wrong", wrong), Attempt(problem, "expert", expert)]
    return made


def judge(
    evaluator: Evaluator, chosen: Sequence[Attempt], progress: Callable[[str], None]
) -> list[tuple[Attempt, Feedback]]:
    """Compiles all and judges the wrong ones meanwhile; then the others one by one, so that nothing disturbs the clock.

    Returns:
        The attempts as given, each with what was found.
    """
    progress(f"compiling {len(chosen)} kernels, running the wrong ones")

    def first_round(attempt: Attempt) -> Feedback:
        return evaluator.evaluate(attempt.problem, attempt.source, CONFIG if attempt.is_wrong else COMPILE_ONLY)

    # Those that run have the longest way to go.
    in_turn = sorted(chosen, key=lambda attempt: not attempt.is_wrong)
    pool = ThreadPoolExecutor(JOBS)
    try:
        found = dict(zip(in_turn, pool.map(first_round, in_turn), strict=True))
    except BaseException:
        evaluator.close()  # ends what the threads are waiting for
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for attempt in chosen:
        if not attempt.is_wrong:
            progress(f"timing {attempt.problem.name}, {attempt.name}")
            found[attempt] = evaluator.evaluate(attempt.problem, attempt.source, CONFIG)
    return [(attempt, found[attempt]) for attempt in chosen]
