"""The example of a task text: a kernel for another problem with the same communication pattern."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.problem import Problem
from pkb_gym.kernels.examples import example_for

HEADING = "## Example"

_TEXT = """\
{heading}

A plain kernel for another problem, {name}:

```{fence}
{source}```"""


def example_text(problem: Problem, languages: Sequence[str]) -> str:
    """The section with the example.

    Args:
        problem: Problem to solve.
        languages: Accepted dialects, of which the first is shown.
    """
    example = example_for(problem, languages[0])
    fence = "python" if example.language == "python" else "cpp"
    return _TEXT.format(heading=HEADING, name=example.problem, fence=fence, source=example.source.lstrip())
