"""The conditions of a result: the settings that must agree where results stand beside each other.

`pkb run` refuses to resume under others, `pkb compare` to compare across them, and `pkb report` groups by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_remarks import without_remarks

OLD_DIGESTS = (
    "one is of an earlier version of pkb-gym, whose digests count comments and docstrings, too: both agree only while "
    "these are as they were"
)
"""A note on digests that do not compare."""

MAX_PROBLEMS = 3
"""Problems that a text names."""

SHORT_DIGEST = 12
"""Digits of a digest in a text."""


@dataclass(frozen=True)
class Conditions:
    """The conditions under which one problem was judged.

    Attributes:
        hardware: Name of the processor or GPU; None where another machine judges and did not name it yet.
        device: Device of the candidate.
        world_size: Number of ranks.
        ranks_per_gpu: Ranks that share a GPU.
        size: Name of the size, or axes such as "M=4,N=8", by name.
        dtype: Floating dtype.
        protocol: Inputs, tolerances and timing.
        problem_sha256: Version of the problem, as by `problem_sha256`; in records of earlier versions of pkb-gym, as by
            `problem_text_sha256`.
        problem_text_sha256: The version as by `problem_text_sha256`; None in records of earlier versions.
    """

    hardware: str | None
    device: str
    world_size: int
    ranks_per_gpu: int
    size: str
    dtype: str
    protocol: str
    problem_sha256: str
    problem_text_sha256: str | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        config: ResolvedConfig,
        hardware: str | None,
        problem_sha256: str,
        problem_text_sha256: str | None = None,
    ) -> Self:
        """The conditions of a configuration on a machine, for one version of a problem."""
        size = config.size
        return cls(
            hardware=hardware,
            device=config.device,
            world_size=config.world_size,
            ranks_per_gpu=config.ranks_per_gpu,
            size=size if isinstance(size, str) else ",".join(f"{name}={size[name]}" for name in sorted(size)),
            dtype=config.dtype,
            protocol=config.protocol,
            problem_sha256=problem_sha256,
            problem_text_sha256=problem_text_sha256,
        )

    @classmethod
    def of_feedback(cls, feedback: Feedback) -> Self:
        """The conditions of an evaluation."""
        found = feedback.problem_sha256, feedback.problem_text_sha256
        return cls.of(feedback.config, feedback.environment.hardware, *found)

    def text_of(self, setting: str) -> str:
        """The value of a setting in words."""
        value = getattr(self, setting)
        return value[:SHORT_DIGEST] if setting == "problem_sha256" else str(value)


SETTINGS = tuple(each.name for each in fields(Conditions) if each.compare)
"""Names of the settings that must agree."""


@dataclass(frozen=True)
class ConditionDifference:
    """One setting that differs between two sides.

    Attributes:
        setting: Name of the setting, of `SETTINGS`.
        a: Value on the first side in words; several with commas.
        b: Value on the second side.
        problems: Names of the problems where it differs; empty for all that both sides have.
        is_renamed: Whether the values are digests of different kinds, see `problem_text_sha256`.
    """

    setting: str
    a: str
    b: str
    problems: tuple[str, ...] = ()
    is_renamed: bool = False

    @property
    def where(self) -> str:
        """The problems in brackets, after a blank; empty for all of them. A note follows digests that do not compare.

        Example:
            >>> ConditionDifference("dtype", "float32", "bfloat16", ("AllReduce", "DDP", "Gather", "Reduce")).where
            ' (AllReduce, DDP, Gather and 1 more)'
        """
        note = f" ({OLD_DIGESTS})" if self.is_renamed else ""
        if not self.problems:
            return note
        more = len(self.problems) - MAX_PROBLEMS
        return f" ({', '.join(self.problems[:MAX_PROBLEMS])}{f' and {more} more' if more > 0 else ''}){note}"


def condition_differences(
    a: Mapping[str, Collection[Conditions]], b: Mapping[str, Collection[Conditions]]
) -> list[ConditionDifference]:
    """The settings that differ on the problems that both sides have, each pair of values once.

    Args:
        a: Conditions of the first side by problem; several where a problem was judged under several.
        b: Conditions of the second side.
    """
    shared = sorted(a.keys() & b.keys())
    found: dict[tuple[str, str, str, bool], list[str]] = {}
    for problem in shared:
        now = {one.problem_text_sha256: one.problem_sha256 for side in (a, b) for one in side[problem]}
        sides = [
            [replace(one, problem_sha256=now.get(one.problem_sha256, one.problem_sha256)) for one in side[problem]]
            for side in (a, b)
        ]
        is_old = [{one.problem_text_sha256 is None for one in side} for side in sides]
        for setting in SETTINGS:
            of_a, of_b = (", ".join(sorted({each.text_of(setting) for each in side})) for side in sides)
            if of_a != of_b:
                is_renamed = setting == "problem_sha256" and is_old[0] != is_old[1]
                found.setdefault((setting, of_a, of_b, is_renamed), []).append(problem)
    ordered = sorted(found.items(), key=lambda one: SETTINGS.index(one[0][0]))
    return [
        ConditionDifference(
            setting, of_a, of_b, () if len(problems) == len(shared) else tuple(problems), is_renamed=is_renamed
        )
        for (setting, of_a, of_b, is_renamed), problems in ordered
    ]


def problem_sha256(problem: Problem) -> str:
    """The version of a problem: the digest of its declaration and its reference without comments and docstrings."""
    return _digest(problem, lambda text: without_remarks(text).encode())


def problem_text_sha256(problem: Problem) -> str:
    """The digest of the same files as they are, by which earlier versions of pkb-gym named a problem's version."""
    return _digest(problem, str.encode)


def _digest(problem: Problem, content: Callable[[str], bytes]) -> str:
    digest = hashlib.sha256()
    declaration = Path(problem.declared_in)
    for path in (declaration, declaration.with_name("reference.py")):
        digest.update(content(path.read_bytes().decode()))
    return digest.hexdigest()
