"""The folder of a workspace: the task, its reference, the API card, kernels of other problems, and two programs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pkb_gym.agents.workspace import client
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.envs.text.api_card import api_card
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.kernels.examples import Pattern, examples
from pkb_gym.kernels.text import NativeLanguage
from pkb_gym.problems.catalogue import reference_source
from pkb_gym.problems.splits import near_duplicates

TASK, REFERENCE, CARD, EXAMPLES, HISTORY, INCLUDE = (
    "TASK.md",
    "reference.py",
    "API.md",
    "examples",
    "history",
    "include",
)
"""Names in the folder."""

EVALUATE, SUBMIT = "evaluate", "submit"
SUFFIXES = {"cpp": ".cpp", "cuda": ".cu", "python": ".py", "triton": ".py"}

_HEADERS = Path(client.__file__).resolve().parents[2] / "engine" / "include"

WORKSPACE = """
## Workspace

You work alone in this folder, on a kernel that you write to `{solution}`:

- `./evaluate FILE` has it judged: it is compiled, run on all ranks, checked and, as far as this run goes, timed and
  profiled. `--until compile`, `check` or `time` stops earlier; `--race on` or `strict` has the race detector judge a
  CUDA source. You have {evaluations} evaluations, however they end.
- `./submit FILE` names your answer and ends the episode. Without it the best evaluated source is your answer.
- {time}
- `{reference}` is the baseline, `{examples}/` holds kernels of other problems{native}.
{history}
First right, then faster.
"""

_NATIVE = ", `{card}` the API card, `{include}/` its headers"
_HISTORY = "- `{history}/` holds your earlier evaluations of this episode, which was interrupted.\n"
PROMPT = (
    f"Read {TASK} in the working folder and follow it: write the kernel, evaluate it with ./{EVALUATE} FILE, improve "
    f"it, and finish with ./{SUBMIT} FILE."
)
"""Prompt of a coding agent."""


@dataclass(frozen=True)
class WorkspaceBudget:
    """The remaining budget of an episode.

    Attributes:
        evaluations: Number of evaluations.
        minutes: Time of the program in minutes, evaluations excluded.
        tokens: Number of tokens that the program may report; None for no limit.
    """

    evaluations: int
    minutes: float
    tokens: int | None

    @property
    def text(self) -> str:
        """The time and tokens in a sentence."""
        tokens = "" if self.tokens is None else f" and {self.tokens} tokens"
        return f"You have {self.minutes:.0f} minutes{tokens}; evaluations take none of that time."


def fill_workspace(
    folder: Path,
    problem: Problem,
    task: str,
    languages: Sequence[str],
    budget: WorkspaceBudget,
    earlier: Sequence[Attempt] = (),
) -> str:
    """Fills the folder of a workspace.

    Args:
        folder: Empty folder.
        problem: Problem to solve.
        task: Task text.
        languages: Accepted dialects, the preferred one first.
        budget: Budget of the program.
        earlier: Attempts of earlier calls at this episode.

    Returns:
        The text of the task file.
    """
    natives = [native for native in get_args(NativeLanguage) if native in languages]
    text = task + WORKSPACE.format(
        solution=f"solution{SUFFIXES[languages[0]]}",
        evaluations=budget.evaluations,
        time=budget.text,
        reference=REFERENCE,
        examples=EXAMPLES,
        native=_NATIVE.format(card=CARD, include=INCLUDE) if natives else "",
        history=_HISTORY.format(history=HISTORY) if earlier else "",
    )
    files = {TASK: text, REFERENCE: reference_source(problem)}
    if natives:
        files[CARD] = "\n".join(f"# {native}\n\n```cpp\n{api_card(native)}```\n" for native in natives)
        shutil.copytree(_HEADERS, folder / INCLUDE)
    files |= _example_files(problem, languages)
    for attempt in earlier:
        place = f"{HISTORY}/{attempt.turn:03}"
        files[f"{place}{_suffix(attempt)}"] = attempt.source or ""
        files[f"{place}.txt"] = attempt.verdict if attempt.feedback is None else feedback_text(attempt.feedback)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
    for name in (EVALUATE, SUBMIT):
        shutil.copyfile(client.__file__, folder / name)
        (folder / name).chmod(0o755)
    return text


def _example_files(problem: Problem, languages: Sequence[str]) -> dict[str, str]:
    """Kernels of all patterns in each language, none of them for the problem or a near-duplicate of it."""
    forbidden = near_duplicates(problem.name)
    written = dict.fromkeys(language if language in get_args(NativeLanguage) else "python" for language in languages)
    return {
        f"{EXAMPLES}/{example.problem}{SUFFIXES[language]}": example.source.lstrip()
        for language in written
        for pattern in get_args(Pattern)
        for example in examples(language, pattern)
        if example.problem not in forbidden
    }


def _suffix(attempt: Attempt) -> str:
    return ".source" if attempt.config is None else SUFFIXES[attempt.config.language]
