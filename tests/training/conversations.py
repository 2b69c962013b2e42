"""A corpus small enough to read, in the format of `pkb export corpus`."""

from __future__ import annotations

import json
from typing import Any

from datasets import Dataset

SOURCE = (
    '#include "pkb/symm.h"\n\nvoid solution(pkb::Comm comm) {\n    const int block = BLOCK;\n    comm.barrier();\n}\n'
)
PROBLEMS = ("AllReduce", "AllGather")


def source(block: int) -> str:
    return SOURCE.replace("BLOCK", str(block))


def prompt(problem: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You write kernels.", "tool_calls": None, "name": None},
        user(f"Write {problem} for 2 ranks."),
    ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "tool_calls": None, "name": None}


def submission(text: str) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "submit", "arguments": {"source": text}}}
    return {"role": "assistant", "content": "", "tool_calls": [call], "name": None}


def answer(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_calls": None, "name": "submit"}


def closing(text: str = "It is right.") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": None, "name": None}


def conversation(problem: str, block: int, failures: tuple[str, ...] = ()) -> dict[str, Any]:
    """One row: submissions that fail one after the other, then a right one."""
    messages = prompt(problem)
    for number, failure in enumerate(failures):
        messages += [submission(f"broken {number}: {failure}"), answer(f"{failure}: rank {number}")]
    messages += [submission(source(block)), answer("passed"), closing()]
    rewards = [0.1] * len(failures) + [1.0 + block / 1000]
    return {
        "problem": problem,
        "kind": "repair" if failures else "single",
        "messages": messages,
        "feedback": [json.dumps({"failure": failure}) for failure in failures] + [json.dumps({"failure": None})],
        "rewards": rewards,
        "reward": rewards[-1],
    }


def tiny_corpus() -> Dataset:
    """Six conversations of two problems, two of them repairs."""
    rows = [conversation(problem, block) for problem in PROBLEMS for block in (32, 64)]
    rows.append(conversation("AllReduce", 128, ("compile_error",)))
    rows.append(conversation("AllGather", 128, ("compile_error", "deadlock")))
    return Dataset.from_list(rows)
