"""A scripted policy that tells its prompts apart: what it writes names the task that it was asked for.

Rollout `sample` of task `t` submits `speedup t.TURNsample` as often as `TURNS[t % 2][sample]` says, and then says that
it is done. So rollouts have ragged numbers of turns, and each completion shows whether it belongs to its prompt.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.training.scripted import row, say, submit

TURNS = ((1, 0, 2, 0), (3, 3, 2, 1))
"""Number of submissions of each rollout of a group, for even and for odd tasks."""


def task_row(task: int) -> dict[str, Any]:
    """A row of the prompts that names its task."""
    return row(prompt=[{"role": "user", "content": f"Task {task}."}], seed=task)


def tasks_named(text: str) -> set[int]:
    """The tasks that a prompt or a completion names."""
    return {int(number) for number in re.findall(r"(?:Task |: \"speedup )(\d+)", text)}


def logprob_of(task: int) -> float:
    """The log-probability that is returned for every token of a task's completion."""
    return -task / 128


class NumberedTasks:
    """Answers prompts of `task_row`, on a server or in a process.

    Args:
        policy: Folder of the tokenizer.
    """

    def __init__(self, policy: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(policy)
        self._begun: Counter[int] = Counter()
        self._lock = threading.Lock()

    def answer(self, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        """The next message after a prompt or a context, and the log-probability of its tokens."""
        text = self._tokenizer.decode(prompt)
        (task,) = tasks_named(text)
        submitted = re.findall(r": \"speedup \d+\.\d(\d)", text)
        if submitted:
            sample = int(submitted[0])
        else:
            with self._lock:
                sample = self._begun[task] % len(TURNS[0])
                self._begun[task] += 1
        if len(submitted) < TURNS[task % 2][sample]:
            reply = submit(f"speedup {task}.{len(submitted) + 1}{sample}")
        else:
            reply = say(f"Task {task} is done.")
        return self._tokenizer(reply)["input_ids"][:max_tokens], logprob_of(task)
