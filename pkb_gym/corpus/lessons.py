"""Lessons: conversations that go from a naive kernel to the expert, with what was measured of each step.

Nothing is evaluated for them: figures are those of `problems/expert_times.json`, each with its commit, and a step that
was not measured says so. Problems are of the split's training part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from pkb_gym.corpus.conversations import CorpusMessage, submission
from pkb_gym.corpus.prompts import prompt_messages
from pkb_gym.corpus.tasks import Task, TaskRow
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.machine import Machine
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.envs.text.formatting import time_text
from pkb_gym.envs.text.turn import Style
from pkb_gym.problems.catalogue import expert_source
from pkb_gym.problems.expert_times import ExpertTime, expert_times

StepName: TypeAlias = Literal["naive", "fused", "overlapped"]

OPENINGS: Mapping[StepName, str] = MappingProxyType(
    {
        "naive": "First a naive kernel, which is right.",
        "fused": "Now communication and computation in as few passes as possible: fused.",
        "overlapped": "Now communication beside computation, which hides it: overlapped.",
    }
)

OVERLAPPED = frozenset(
    {
        "AllGatherGemm",
        "FP8AllGatherParams",
        "FP8ReduceScatterGrads",
        "FSDPTensorParallel",
        "GemmAllReduce",
        "GemmReduceScatter",
        "VocabParallelLogProb",
        "VocabParallelLogProbChunked",
    }
)
"""Problems whose expert moves data while it computes; those of others are fused."""

UNMEASURED_RANKS = 2
"""Ranks of a lesson without a measurement."""

Naive: TypeAlias = Callable[[Problem], str | None]
"""A problem -> its naive CUDA kernel, or None."""


class LessonRow(TaskRow):
    """One row of `pkb export lessons`: columns of the corpus, of which those of evaluations are empty."""

    id: str
    kind: str
    messages: list[CorpusMessage]
    steps: list[str]
    times: list[str]
    feedback: list[str]
    rewards: list[float]
    reward: float | None
    source_hash: str


@dataclass(frozen=True)
class Step:
    """A kernel on the way to the expert.

    Attributes:
        name: What the step does.
        source: Text of the kernel.
        time: Its measurement; None where none is kept.
    """

    name: StepName
    source: str
    time: ExpertTime | None


def lesson_rows(
    problems: Sequence[Problem], naive: Naive, style: Style, machine: Machine | None = None
) -> list[LessonRow]:
    """One lesson for each measurement of an expert at size `published` or `large`, or one where there is none.

    Args:
        problems: Problems of the training part; those without a CUDA expert have no lesson.
        naive: Function from a problem to its naive kernel.
        style: Style of the prompts.
        machine: Machine that the prompts describe; None for this one.

    Raises:
        ConfigError, SizeError: A size makes no sense for a problem.
    """
    rows: list[LessonRow] = []
    for problem in problems:
        expert = expert_source(problem, "cu")
        if expert is None:
            continue
        measured: list[ExpertTime | None] = [time for time in expert_times(problem.name) if time.size != "tiny"]
        for time in measured or [None]:
            size, ranks = ("published", UNMEASURED_RANKS) if time is None else (time.size, time.world_size)
            task = Task(problem.name, "cuda", ranks, size, problem.dtypes[0], 0, style, machine)
            rows.append(_row(task, steps_of(problem, expert, naive(problem), time)))
    return rows


def steps_of(problem: Problem, expert: str, naive: str | None, time: ExpertTime | None) -> tuple[Step, ...]:
    """The steps to an expert.

    Args:
        problem: Problem that is solved.
        expert: Text of the expert.
        naive: Text of a naive kernel; None where none is known, which leaves that step out.
        time: Measurement of the expert; None where none is kept.
    """
    first = () if naive is None else (Step("naive", naive, None),)
    return (*first, Step("overlapped" if problem.name in OVERLAPPED else "fused", expert, time))


def measurement(time: ExpertTime | None) -> str:
    """A sentence or two about a step: its time and its gain over the baseline, or that none is known."""
    if time is None:
        return "No measurement of this kernel is kept: its gain is unknown."
    ranks = "1 rank" if time.world_size == 1 else f"{time.world_size} ranks"
    gains = f"{time.speedup:.2f} times as fast as the eager baseline (at least {time.speedup_low:.2f})"
    if time.captured_us is not None:
        gains += f", {time.captured_us / time.expert_us:.2f} times as fast as the captured one"
    share = "" if time.utilisation is None else f", {100 * time.utilisation:.0f} % of the roofline"
    return (
        f"Measured on {time.gpu}, {ranks}, size {time.size}, {time.dtype}, commit {time.commit}, {time.date}: "
        f"{time_text(time.expert_us)} a call, {gains}{share}."
    )


def _row(task: Task, steps: Sequence[Step]) -> LessonRow:
    messages = [CorpusMessage(role=each["role"], content=each["content"]) for each in prompt_messages(task)]
    for step in steps:
        messages.append(submission(step.source) | {"content": OPENINGS[step.name]})
        messages.append(CorpusMessage(role="user", content=measurement(step.time)))
    last = steps[-1]
    closing = (
        "This kernel is the last step" if last.time is None else f"This kernel takes {time_text(last.time.expert_us)}"
    )
    messages.append(
        CorpusMessage(role="assistant", content=f"{closing}; its comment says what it leaves on the table.")
    )
    digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
    return {
        "id": digest[:16],
        **task.columns(),
        "kind": "lesson",
        "messages": messages,
        "steps": [step.name for step in steps],
        "times": [json.dumps(None if step.time is None else asdict(step.time)) for step in steps],
        "feedback": [],
        "rewards": [],
        "reward": None,
        "source_hash": source_sha256(last.source),
    }
