"""The prompt of a task: system and user message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypedDict

from pkb_gym.corpus.tasks import Part, Task, TaskRow, TaskWorkload, workloads
from pkb_gym.engine.hardware.calibrate import cpu_hardware
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Language
from pkb_gym.engine.records.machine import Machine
from pkb_gym.envs.suite import split_names
from pkb_gym.envs.text.brief import brief_task
from pkb_gym.envs.text.task import task_text
from pkb_gym.envs.text.turn import Style
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from pkb_gym.problems.splits import near_duplicates

SUFFIXES = {"cpp": "cpp", "cuda": "cu"}
"""Native language -> suffix of its sources."""

MAX_EXAMPLE_CHARS = 6_000
"""Longest kernel that is shown as an example."""

SYSTEM: dict[Style, str] = {
    "full": (
        "You are an expert in parallel programming who writes fast multi-rank kernels. Submit a complete source file "
        "with the tool `submit`: it compiles the source, runs it on all ranks, checks every output against the "
        "reference, times it against the baseline and reports what it found. Then submit a better one: first right, "
        "then faster."
    ),
    "brief": "Submit a kernel with the tool submit. First right, then faster.",
}

EXAMPLE = """\
## Example

A kernel for another problem, as it should be written:

{task}

```{language}
{source}```
"""


class PromptMessage(TypedDict):
    """One message of a prompt."""

    role: str
    content: str


class PromptRow(TaskRow):
    """One row of `pkb export prompts`."""

    prompt: list[PromptMessage]


def prompt_messages(task: Task) -> list[PromptMessage]:
    """System and user message.

    The full style holds the task text and a kernel for another problem; the brief one a few lines. The seed is not in
    it, so that tasks that differ in nothing else have the same prompt.

    Raises:
        ConfigError, SizeError: the task makes no sense on the machine that judges.
    """
    problem, config = find_problem(task.problem), task.resolved()
    if task.style == "brief":
        user = brief_task(problem, config, task.judge())
    else:
        if config.device == "cpu" and task.machine is None:
            cpu_hardware()  # measured once: the text must not depend on whether something was evaluated before
        user = task_text(problem, config, (task.language,), task.judge())
        example = example_for(problem.name, task.language)
        if example is not None:
            user += "\n" + example_text(task, example)
    return [{"role": "system", "content": SYSTEM[task.style]}, {"role": "user", "content": user}]


def example_text(task: Task, example: str) -> str:
    """A kernel for another problem, with its task in brief.

    Args:
        task: Task of the prompt; size "tiny" and the first dtype stand in for its own.
        example: Name of the other problem.
    """
    problem = find_problem(example)
    theirs = replace(task, problem=example, size="tiny", dtype=problem.dtypes[0], style="brief")
    source = expert_source(problem, SUFFIXES[task.language])
    assert source is not None
    return EXAMPLE.format(task=brief_task(problem, theirs.resolved(), theirs.judge()), language="cpp", source=source)


@cache
def example_for(problem: str, language: str) -> str | None:
    """The problem whose known-good kernel is shown to those who are to solve another one; None where there is none.

    It is of the train split, and neither the problem itself nor a near-duplicate of it: of those with a kernel that is
    not too long, the one that has most tags in common, and of these the one with the shortest kernel.

    Args:
        problem: Problem to solve.
        language: Language of the kernel.
    """
    if language not in SUFFIXES:
        return None
    wanted, forbidden = set(find_problem(problem).tags), near_duplicates(problem)
    train = set(split_names("train"))
    fitting: list[tuple[int, int, str]] = []
    for other in catalogue():
        source = expert_source(other, SUFFIXES[language])
        if source is None or len(source) > MAX_EXAMPLE_CHARS or other.name in forbidden or other.name not in train:
            continue
        fitting.append((-len(wanted & set(other.tags)), len(source), other.name))
    return min(fitting)[2] if fitting else None


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
