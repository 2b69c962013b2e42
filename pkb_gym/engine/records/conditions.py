"""The conditions of a result: the settings that must agree where results stand beside each other.

`pkb run` refuses to resume under others, `pkb compare` to compare across them, and `pkb report` groups by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.feedback import Feedback

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
        problem_sha256: Version of the problem, as by `problem_sha256`.
    """

    hardware: str | None
    device: str
    world_size: int
    ranks_per_gpu: int
    size: str
    dtype: str
    protocol: str
    problem_sha256: str

    @classmethod
    def of(cls, config: ResolvedConfig, hardware: str | None, problem_sha256: str) -> Self:
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
        )

    @classmethod
    def of_feedback(cls, feedback: Feedback) -> Self:
        """The conditions of an evaluation."""
        return cls.of(feedback.config, feedback.environment.hardware, feedback.problem_sha256)

    def text_of(self, setting: str) -> str:
        """The value of a setting in words."""
        value = getattr(self, setting)
        return value[:SHORT_DIGEST] if setting == "problem_sha256" else str(value)


SETTINGS = tuple(field.name for field in fields(Conditions))
"""Names of the settings that must agree."""


@dataclass(frozen=True)
class ConditionDifference:
    """One setting that differs between two sides.

    Attributes:
        setting: Name of the setting, of `SETTINGS`.
        a: Value on the first side in words; several with commas.
        b: Value on the second side.
        problems: Names of the problems where it differs; empty for all that both sides have.
    """

    setting: str
    a: str
    b: str
    problems: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The problems in brackets, after a blank; empty for all of them.

        Example:
            >>> ConditionDifference("dtype", "float32", "bfloat16", ("AllReduce", "DDP", "Gather", "Reduce")).where
            ' (AllReduce, DDP, Gather and 1 more)'
        """
        if not self.problems:
            return ""
        more = len(self.problems) - MAX_PROBLEMS
        return f" ({', '.join(self.problems[:MAX_PROBLEMS])}{f' and {more} more' if more > 0 else ''})"


def condition_differences(
    a: Mapping[str, Collection[Conditions]], b: Mapping[str, Collection[Conditions]]
) -> list[ConditionDifference]:
    """The settings that differ on the problems that both sides have, each pair of values once.

    Args:
        a: Conditions of the first side by problem; several where a problem was judged under several.
        b: Conditions of the second side.
    """
    shared = sorted(a.keys() & b.keys())
    found: dict[tuple[str, str, str], list[str]] = {}
    for setting in SETTINGS:
        for problem in shared:
            of_a, of_b = (", ".join(sorted({each.text_of(setting) for each in side[problem]})) for side in (a, b))
            if of_a != of_b:
                found.setdefault((setting, of_a, of_b), []).append(problem)
    return [
        ConditionDifference(*key, problems=() if len(problems) == len(shared) else tuple(problems))
        for key, problems in found.items()
    ]


def problem_sha256(problem: Problem) -> str:
    """The version of a problem: the digest of its declaration and its reference."""
    digest = hashlib.sha256()
    declaration = Path(problem.declared_in)
    for path in (declaration, declaration.with_name("reference.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
