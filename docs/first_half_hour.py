"""The first half hour of a new user, as steps that are run: writes docs/first_half_hour.md. Run as a script.

Commands run in a folder of their own, with a background evaluator of their own. Lines of an output that a step does not
name are left out; those that it compares must come again, numbers aside, whenever the steps are run.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
ROOT = PAGE.parent.parent
DEADLINE_S = 600.0
LEFT_OUT = "..."

PROBLEM = '''"""MaxOverRanks: the elementwise maximum of all ranks' vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials, exact

if TYPE_CHECKING:
    import torch


def inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal: any rank may hold the maximum of an element."""
    return (make.normal("x"),)


def cost(ax: Axes) -> Cost:
    """Reduce-scatter, then all-gather."""
    share = (ax.W - 1) / ax.W
    return Cost(
        vector_flops=share * ax.N,
        memory_bytes=2 * ax.N * ax.itemsize,
        link_in_bytes=2 * share * ax.N * ax.itemsize,
        link_out_bytes=2 * share * ax.N * ax.itemsize,
    )


PROBLEM = Problem(
    name="MaxOverRanks",
    category="collective_primitive",
    summary="Every rank receives the elementwise maximum of all ranks' vectors.",
    tags=("all_reduce",),
    dtypes=("float32",),
    sizes={"tiny": {"N": 1024}, "published": {"N": 1 << 20}, "large": {"N": 1 << 25}},
    args=(Tensor("x", ("N",), about="this rank's vector"),),
    outputs=(Output("out", ("N",), check=exact()),),
    robust=Trials(inputs),
    published=Trials(inputs),
    cost=cost,
    least_work=LeastWork("Every element is read, and every element of the output written.", of=("memory",)),
)
'''
REFERENCE = '''import torch
import torch.distributed as dist


@torch.no_grad()
def solution(x: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum over ranks.

    Args:
        x: (N,), this rank's vector.

    Returns:
        (N,), the same on every rank.
    """
    out = x.clone()
    dist.all_reduce(out, op=dist.ReduceOp.MAX)
    return out
'''


@dataclass(frozen=True)
class Step:
    """One command, with the words before it.

    Attributes:
        prose: Markdown before the command.
        command: Command line for bash.
        compared: Pattern of the lines that are on the page and equal in each run, numbers aside.
        shown: Pattern of further lines on the page, which may differ between runs.
        is_quick: Whether the test runs the command too.
    """

    prose: str
    command: str
    compared: str = ""
    shown: str = "(?!)"
    is_quick: bool = True


@dataclass(frozen=True)
class NewFile:
    """A file that the user writes.

    Attributes:
        prose: Markdown before the file.
        path: Path relative to the working folder.
        text: Content of the file.
    """

    prose: str
    path: str
    text: str


OPTIONS = "--device cpu --world-size 2 --size tiny"
EVALUATE = f"pkb eval AllReduce kernel.cpp {OPTIONS}"
CHECK = f"{EVALUATE} --until check"
VERDICT = "│ (stages|failure|check)|tensor lies|before, so let"

STEPS: tuple[Step | NewFile, ...] = (
    Step(
        "`make demo` in a checkout, or `pip install` of a wheel ([install.md](install.md)), brings the command `pkb`.\n"
        "The demo evaluates four kernels on the CPU:",
        "pkb demo",
        compared="^(naive|misspelt|no barrier|expert)|  no barrier: ",
        shown="^kernel|  misspelt: ",
        is_quick=False,
    ),
    Step(
        "## A kernel\n\nThe catalogue has 87 problems; `pkb show NAME` prints the task of one.",
        "pkb list --category collective_primitive",
        compared=r"AllReduce|ReduceScatter|Broadcast|problems\.",
    ),
    Step(
        "A starter is right and naive, and its comments say where to go next:",
        "pkb new AllReduce kernel.cpp",
        compared="kernel.cpp",
    ),
    Step(
        "Here each rank reads all ranks' tensors, between two barriers:",
        "sed -n '/^void add_up/,/^}/p; /comm.barrier/p' kernel.cpp",
    ),
    Step(
        "The first evaluation starts a background evaluator, which later ones use:",
        EVALUATE,
        compared="│ (stages|check|reward)",
        shown="│ (time|roofline)|│ +(baseline|candidate)",
    ),
    Step(
        "## A wrong kernel\n\nIs the second barrier needed?",
        f"sed -i '/this call may end/d' kernel.cpp && {CHECK}",
        compared=VERDICT,
    ),
    Step(
        "It is: the other rank may still read a rank's arguments after that rank's call has returned. Checked\n"
        "calls delay one rank after the other, so that such a race shows every time\n"
        "([native-abi.md](native-abi.md#the-call-contract)). The next mistake is one element too many:",
        f"pkb new AllReduce kernel.cpp --force && sed -i 's/i < count/i <= count/' kernel.cpp && {CHECK}",
        compared=VERDICT,
    ),
    Step(
        "The address sanitizer names the line ([debugging.md](debugging.md) has the other tools, and gdb):",
        f"{EVALUATE} --sanitize address",
        compared="│ stages",
        shown="│ failure|TensorView|kernel.cpp:",
        is_quick=False,
    ),
    NewFile(
        "## A problem of one's own\n\nA problem is a folder with a declaration and a reference\n"
        "([problems.md](problems.md)):",
        "max_over_ranks/problem.py",
        PROBLEM,
    ),
    NewFile("", "max_over_ranks/reference.py", REFERENCE),
    Step(
        "It is evaluated as the 87 are:",
        f"pkb new ./max_over_ranks max.py && pkb eval ./max_over_ranks max.py {OPTIONS} --until check",
        compared="max.py|│ (stages|check)",
    ),
    Step(
        "`pkb check-problem` proves that the reference passes and that wrong answers are refused:",
        "pkb check-problem ./max_over_ranks",
        compared="^reference, [12]|^refused: (zeros|the first|no comm)|checks failed",
        is_quick=False,
    ),
    Step(
        "[own_problem/](own_problem/README.md) is an installable package to copy. The evaluator ends after ten\n"
        "idle minutes, or at once:",
        "pkb evaluator stop",
        compared="has ended",
    ),
)
END = """
Next: the loop in Python ([environments.md](environments.md)), agents on all problems ([agents.md](agents.md)), training
([training.md](training.md)).
"""


class Session:
    """A working folder, and the command `pkb` of this checkout.

    Args:
        folder: Empty folder, which also gets the evaluator's socket.
    """

    def __init__(self, folder: Path) -> None:
        self._work, programs, run = (folder / name for name in ("work", "bin", "run"))
        for made in (self._work, programs, run):
            made.mkdir(mode=0o700)
        pkb = programs / "pkb"
        pkb.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pkb_gym.cli "$@"\n')
        pkb.chmod(0o755)
        self._environment: Mapping[str, str] = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "PKB_RUNTIME_DIR": str(run),
            "PKB_EVALUATOR": "background",
        }

    def write(self, file: NewFile) -> None:
        """Writes a file of the user's."""
        path = self._work / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(file.text, encoding="utf-8")

    def run(self, step: Step) -> list[str]:
        """The lines that a command prints."""
        ran = subprocess.run(
            ["bash", "-c", step.command],
            cwd=self._work,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return [line.rstrip() for line in ran.stdout.splitlines()]

    def close(self) -> None:
        """Ends the evaluator, if there is one."""
        self.run(Step("", "pkb evaluator stop"))


def trimmed(step: Step, lines: Sequence[str]) -> list[str]:
    """The lines of an output that are shown on the page, with a mark where some are omitted."""
    kept: list[str] = []
    for line in lines:
        if re.search(step.compared, line) or re.search(step.shown, line):
            kept.append(line)
        elif kept[-1:] != [LEFT_OUT]:
            kept.append(LEFT_OUT)
    return kept


def comparable(step: Step, lines: Sequence[str]) -> list[str]:
    """The lines that are equal in each run, without numbers, units, bars and layout."""
    return [_without_figures(line) for line in lines if line != LEFT_OUT and re.search(step.compared, line)]


def _without_figures(line: str) -> str:
    line = re.sub(r"[░▏▎▍▌▋▊▉█]+", "bar", line)
    line = re.sub(r"-?\d[\d.,]*(?:e[+-]?\d+)?(?: (?:ns|us|ms|s)\b)?", "#", line)
    return " ".join(line.split())


def block(step: Step, lines: Sequence[str]) -> str:
    """A command and its output as shown on the page."""
    return "\n".join(["```console", f"$ {step.command}", *lines, "```"])


def page() -> str:
    """All steps, run now."""
    parts = [
        "# The first half hour",
        "Every command below was run on two processors, and the tests run most of them again.\n"
        f"`{LEFT_OUT}` stands for omitted lines of an output.",
    ]
    with tempfile.TemporaryDirectory(prefix="pkb-") as folder:
        session = Session(Path(folder))
        try:
            for step in STEPS:
                parts.append(step.prose)
                if isinstance(step, NewFile):
                    session.write(step)
                    parts.append(f"```python\n# {step.path}\n{step.text.rstrip()}\n```")
                else:
                    parts.append(block(step, trimmed(step, session.run(step))))
        finally:
            session.close()
    return "\n\n".join(part for part in parts if part) + "\n" + END


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
