"""The opening comment of a starter: what it is, and where to go next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, Language

WIDTH = 120

NATIVE: dict[str, tuple[str, ...]] = {
    "cpp": (
        "Move less: each rank does one share of work that all need, and hands the result to its peers.",
        "Wait less: a signal to the rank that needs the data, not a barrier of all (docs/native-abi.md, Patterns).",
        "Overlap: work that needs no peer comes before the wait for one.",
        "Compute faster: loops over contiguous memory that g++ can vectorise, tiles that fit the caches.",
    ),
    "cuda": (
        "Move less: each rank does one share of work that all need, and hands the result to its peers.",
        "Wait less: blocks that meet in the kernel, or flags in the data, not host barriers (docs/native-abi.md).",
        "Overlap: work that needs no peer comes before the wait for one.",
        "Compute faster: accesses of 16 bytes (pkb/transfer_cuda.h), tensor cores (pkb/gemm_sm90.h), fewer launches.",
    ),
}

PYTHON = (
    "Copy less: results of collectives where they are needed (`..._into_tensor`), no `cat`, `stack` or `contiguous`.",
    "Send less: one collective for several tensors, and only the part that a rank needs.",
    "Overlap: `async_op=True`, then work that needs no peer, then `wait()`.",
)

PYTHON_ON: dict[Device, str] = {
    "cpu": "Leave torch: a C++ kernel reads its peers' memory in place (docs/native-abi.md).",
    "cuda": "Leave torch: Triton or `load_inline` for local work, `torch.distributed._symmetric_memory` for peers' "
    "memory; or a CUDA C++ kernel, which reads it in place (docs/native-abi.md).",
}


def opening_comment(problem: Problem, about: Sequence[str], language: Language, device: Device) -> str:
    """The comment, with a line end.

    Args:
        problem: Problem that the starter solves.
        about: Paragraphs about the kernel.
        language: Language of the source.
        device: Device that the source runs on.
    """
    mark = "//" if language in NATIVE else "#"
    steps = NATIVE[language] if language in NATIVE else (*PYTHON, PYTHON_ON[device])
    paragraphs = [line for text in about for line in (*_wrapped(text, mark), mark)]
    bullets = [line for step in steps for line in _wrapped(step, mark, first="- ", rest="  ")]
    name = problem.name
    last = f"`pkb show {name}` prints the task, the least work and the bounds; `pkb eval {name} FILE` judges it."
    return "\n".join([*paragraphs, f"{mark} Where to go next:", *bullets, *_wrapped(last, mark)]) + "\n"


def _wrapped(text: str, mark: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{mark} {first}",
        subsequent_indent=f"{mark} {rest}",
        break_long_words=False,
        break_on_hyphens=False,
    )
