"""Messages between the parent of `gpu_baselines` and its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BaselineTask:
    """The next measurement of the ranks.

    Attributes:
        problem: Name of the problem.
        size: "tiny", "published" or "large".
        protocol: "robust" or "published", where the inputs come from.
        measure_s: Seconds of timed calls of each of the two baselines.
        reference: File with another version of the reference; None for the problem's own.
    """

    problem: str
    size: str
    protocol: str
    measure_s: float
    reference: Path | None = None


@dataclass
class BaselineOutcome:
    """The result of a task.

    Attributes:
        row: Measurements of rank 0, without the CUDA graph where there is an error; empty where nothing was measured.
        error: Reason that the task failed; None where it passed.
        usable: Whether the gang can go on.
    """

    row: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    usable: bool = True
