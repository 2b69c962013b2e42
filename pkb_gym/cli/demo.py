"""`pkb demo`: one problem, two kernels that are right and two that are not, and the evaluator's verdict on each."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import expert_source, find_problem
from pkb_gym.starters import make_starter

from .command import Session, Status, add_parser, print_table, stderr, stdout
from .evaluate import exit_status
from .progress import StageProgress
from .verdict import cells, print_card, print_reasons, result_table, reward_of

EXAMPLE = "pkb demo"
PROBLEM = "AllReduce"
JOBS = 2
"""Evaluations side by side before anything is timed."""

CONFIG = EvalConfig(device="cpu", world_size=2, size="published", timing_budget_s=1.5)
"""Configuration on the CPU, which every machine has, at a size where moving the data takes longer than gloo's start of
a call."""

COMPILE_ONLY = CONFIG.model_copy(update={"until": "compile"})

COMPARED = """\
2 ranks on the CPU add up their 1024 x 1024 bfloat16 tensors. A call of each kernel ("candidate") is timed against
torch.distributed.all_reduce over gloo ("baseline"). Reward: 1 is right and as fast as the baseline, more is faster; the
lower end of the measured interval counts, which is wide where other programs keep the processor busy."""


@dataclass(frozen=True)
class Mistake:
    """A change that makes the naive kernel wrong.

    Attributes:
        name: Name of the attempt.
        right: Piece of the naive source that is changed.
        wrong: Text that replaces the piece.
        about: Change in words.
        expected: Failure that the evaluator finds.
    """

    name: str
    right: str
    wrong: str
    about: str
    expected: Failure


MISTAKES = (
    Mistake(
        "misspelt",
        right="comm.peer(x, r)",
        wrong="comm.peers(x, r)",
        about="names a function that does not exist",
        expected=Failure.COMPILE_ERROR,
    ),
    Mistake(
        "no barrier",
        right="  comm.barrier();  // peers' arguments are there: their calls have begun\n",
        wrong="",
        about="reads its peer's tensor without waiting for it",
        expected=Failure.RACE,
    ),
)


@dataclass(frozen=True)
class DemoKernel:
    """One source.

    Attributes:
        name: Name in the table.
        source: Text of the kernel.
        mistake: Mistake in the kernel; None where it is right.
    """

    name: str
    source: str
    mistake: Mistake | None = None


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb demo`."""
    add_parser(
        commands,
        "demo",
        run,
        summary="Judge a naive kernel, two wrong ones and an expert's on two CPU ranks.",
        example=EXAMPLE,
        exit_statuses="exit status: 0 everything was judged, 3 this machine could not judge something",
    )


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Evaluates the attempts and prints a table, why two were refused, and the card of the expert's.

    Raises:
        PkbError: this machine could not even begin.
    """
    began = time.monotonic()
    with StageProgress("demo") as progress, closing(session.open_evaluator(None)) as evaluator:
        judged = judge(evaluator, attempts(), progress)
    console = stdout()
    console.print(f"{textwrap.fill(COMPARED, console.width)}\n")
    table = result_table("kernel")
    for attempt, feedback in judged:
        table.add_row(attempt.name, *cells(feedback, reward_of(feedback)))
    print_table(console, table)
    for attempt, feedback in judged:
        if attempt.mistake is not None:
            console.print(f'"{attempt.name}" {attempt.mistake.about}; the verdict:')
            print_reasons(console, [(attempt.name, feedback)] if feedback.failure is not None else [])
    expert = judged[-1][1]
    console.print(f"\nThe expert's kernel in full (`pkb eval {PROBLEM} FILE` prints this):")
    print_card(console, find_problem(PROBLEM), expert)
    console.print(f"Next: pkb list, pkb show {PROBLEM}, pkb eval {PROBLEM} your_kernel.cpp --device cpu")
    if gpus.names():
        console.print(f"On the GPUs of this machine: pkb show {PROBLEM}, pkb eval {PROBLEM} your_kernel.cu")
    stderr().print(f"{time.monotonic() - began:.1f} s")
    ours = any(exit_status(feedback) is Status.NOT_JUDGED for _, feedback in judged)
    return Status.NOT_JUDGED if ours else Status.PASSED


def attempts() -> list[DemoKernel]:
    """The kernels in the order in which they are shown, the expert's last.

    Raises:
        InfrastructureError: the package lacks the expert's.
    """
    problem = find_problem(PROBLEM)
    naive = make_starter(problem, "cpp").source
    expert = expert_source(problem, "cpp")
    if expert is None:
        raise InfrastructureError(f"{problem.name} has no expert.cpp; is the installation complete?")
    wrong = [DemoKernel(m.name, naive.replace(m.right, m.wrong), m) for m in MISTAKES]
    return [DemoKernel("naive", naive), *wrong, DemoKernel("expert", expert)]


def judge(
    evaluator: Evaluator, chosen: Sequence[DemoKernel], progress: Callable[[str], None]
) -> list[tuple[DemoKernel, Feedback]]:
    """Compiles all and judges the wrong ones meanwhile; then the others one by one, so that nothing disturbs the clock.

    Returns:
        The attempts as given, each with what was found.
    """
    progress(f"compiling {len(chosen)} kernels, running the wrong ones")
    problem = find_problem(PROBLEM)

    def first_round(attempt: DemoKernel) -> Feedback:
        return evaluator.evaluate(problem, attempt.source, CONFIG if attempt.mistake else COMPILE_ONLY)

    pool = ThreadPoolExecutor(JOBS)
    try:
        found = dict(zip(chosen, pool.map(first_round, chosen), strict=True))
    except BaseException:
        evaluator.close()  # ends what the threads are waiting for
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    for attempt in chosen:
        if attempt.mistake is None:
            progress(f"timing {attempt.name}")
            found[attempt] = evaluator.evaluate(problem, attempt.source, CONFIG)
    return [(attempt, found[attempt]) for attempt in chosen]
