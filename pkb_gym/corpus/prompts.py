"""The prompt of a task: system and user message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from pkb_gym.corpus.tasks import Part, Task, TaskRow, TaskWorkload, workloads
from pkb_gym.engine.hardware.calibrate import cpu_hardware
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Language
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.text.task import task_text
from pkb_gym.envs.text.turn import Style
from pkb_gym.problems.catalogue import find_problem

SYSTEM = (
    "You are an expert in parallel programming who writes fast multi-rank kernels. Submit a complete source file "
    "with the tool `submit`: it compiles the source, runs it on all ranks, checks every output against the "
    "reference, times it against the baseline and reports what it found. Then submit a better one: first right, "
    "then faster."
)
BRIEF_SYSTEM = "Submit a kernel with the tool submit. First right, then faster."

_CODE_SYSTEM = {
    SYSTEM: (
        "You are an expert in parallel programming who writes fast multi-rank kernels. Submit a complete source file "
        "as one fenced block of code in your reply: it is compiled, run on all ranks, checked against the reference "
        "and timed against the baseline, and the next message reports what was found. Then submit a better one: first "
        "right, then faster."
    ),
    BRIEF_SYSTEM: "Submit a kernel as one fenced block of code. First right, then faster.",
}
"""System message of policies with the tool `submit` -> that of policies that submit fenced code."""


class PromptMessage(TypedDict):
    """One message of a prompt."""

    role: str
    content: str


class PromptRow(TaskRow):
    """One row of `pkb export prompts`."""

    prompt: list[PromptMessage]


def system_text(style: Style) -> str:
    """The system's message, as long as the style asks for."""
    return BRIEF_SYSTEM if style == "brief" else SYSTEM


def code_system_text(text: str) -> str:
    """The system's message for policies that submit fenced code instead of calling `submit`; other texts stay."""
    return _CODE_SYSTEM.get(text, text)


def prompt_messages(task: Task) -> list[PromptMessage]:
    """System and user message.

    The seed is not in it, so that tasks that differ in nothing else have the same prompt.

    Raises:
        ConfigError, SizeError: the task makes no sense on the machine that judges.
    """
    problem, config = find_problem(task.problem), task.resolved()
    if config.device == "cpu" and task.style != "brief" and task.machine is None:
        cpu_hardware()  # measured once: the text must not depend on whether something was evaluated before
    user = task_text(problem, config, (task.language,), task.judge(), task.style)
    return [{"role": "system", "content": system_text(task.style)}, {"role": "user", "content": user}]


def prompt_rows(
    problems: Sequence[Problem],
    *,
    languages: Sequence[Language],
    sizes: Sequence[str],
    world_size: int,
    style: Style,
    seeds: int,
    part: Part,
    variations: int,
    machine: Machine | None = None,
) -> list[PromptRow]:
    """One row for each problem, language, workload and seed.

    Args:
        problems: Problems to solve.
        languages: Languages of the kernels.
        sizes: Named sizes, or axes as JSON.
        world_size: Number of ranks.
        style: Style of the prompts.
        seeds: Number of rows for each prompt, with the inputs of seeds 0, 1, ...
        part: Part of the rows, training or held out, as `part_of` finds it.
        variations: Number of workloads of each problem and size besides the size itself.
        machine: Machine that judges; None for this one.

    Raises:
        ConfigError, SizeError: a size makes no sense for a problem.
    """
    rows: list[PromptRow] = []
    for problem in problems:
        chosen: dict[TaskWorkload, None] = {}
        for size in sizes:
            chosen |= dict.fromkeys(workloads(problem, size, world_size, part, variations))
        for language in languages:
            for workload in chosen:
                task = Task(problem.name, language, world_size, workload.size, workload.dtype, 0, style, machine)
                messages = prompt_messages(task)
                rows += [{**replace(task, seed=seed).columns(), "prompt": messages} for seed in range(seeds)]
    return rows
