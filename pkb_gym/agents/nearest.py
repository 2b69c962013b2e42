"""Submits the kernel of a corpus whose problem is nearest: what copying without understanding reaches.

The control for a policy that was trained on the corpus. Problems are compared by the text of their references; among
the kernels of equally near problems, those of the asked size and dtype come first, then the best rewarded. Sample k
submits the k-th of them, so that several samples are the best of as many kernels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pkb_gym.agents.fixed import FixedProvider
from pkb_gym.agents.options import NoOptions, parse_options
from pkb_gym.agents.protocol import AgentProvider, AgentTask, NotCovered, Reply
from pkb_gym.corpus.conversations import CorpusRow, submissions
from pkb_gym.corpus.files import read_corpus
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.source_tokens import tokens_of
from pkb_gym.problems.catalogue import find_problem, reference_source

LANGUAGES = {"cpu": "cpp", "cuda": "cuda", "emulated": "cuda"}
"""Language of native kernels by device."""


def open_provider(argument: str, options: Mapping[str, str]) -> AgentProvider:
    """The provider of a corpus' kernels, for `registry.open_agent`.

    Raises:
        ConfigError: The folder holds no corpus, or one without a right kernel.
    """
    parse_options("nearest", NoOptions, options)
    path = Path(argument).expanduser()
    kernels = _right_kernels(read_corpus(path))
    if not kernels:
        raise ConfigError(f"agent nearest: the corpus in {path} holds no right kernel")

    def replies(task: AgentTask) -> tuple[Reply, ...]:
        language = LANGUAGES[task.config.device]
        ordered = sorted(
            (row for row in kernels.values() if row["language"] == language), key=lambda row: _distance(task, row)
        )
        if task.sample >= len(ordered):
            raise NotCovered(f"{path} holds {len(ordered)} {language} kernels, and none for sample {task.sample}")
        return (Reply("", submission=_kernel(ordered[task.sample])),)

    digest = hashlib.sha256("\0".join(sorted(kernels)).encode()).hexdigest()[:16]
    return FixedProvider({"sha256": digest}, replies)


def _right_kernels(rows: Sequence[CorpusRow]) -> dict[str, CorpusRow]:
    """The last submission of each conversation that ends in a right kernel -> its best rewarded row."""
    found: dict[str, CorpusRow] = {}
    for row in sorted(rows, key=lambda row: row["reward"]):
        if row["failure"] is None:
            found[_kernel(row)] = row
    return found


def _kernel(row: CorpusRow) -> str:
    return submissions(row["messages"])[-1]


def _distance(task: AgentTask, row: CorpusRow) -> tuple[float, bool, bool, float]:
    other_size = row["size"] != str(task.config.size)
    far = 1 - similarity(task.problem.name, row["problem"]) if task.problem.name != row["problem"] else 0.0
    return far, other_size, row["dtype"] != task.config.dtype, -row["reward"]


@cache
def similarity(a: str, b: str) -> float:
    """The similarity of two problems' references, between 0 and 1.

        s = sum over tokens of min(n_a, n_b) / sum over tokens of max(n_a, n_b)

    n: how often the token stands in the text. Source: Jaccard's index of multisets.

    Raises:
        ProblemNotFound: There is no such problem.
    """
    of_a, of_b = (Counter(tokens_of(reference_source(find_problem(name)))) for name in (a, b))
    return (of_a & of_b).total() / (of_a | of_b).total()
