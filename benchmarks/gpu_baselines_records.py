"""Messages between the parent of `gpu_baselines` and its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BaselineTask:
    """The next measurement of the ranks.

    Attributes:
        problem: its name.
        size: "tiny", "published" or "large".
        protocol: "robust" or "published", where the inputs come from.
        measure_s: seconds of timed calls that each of the two baselines aims at.
        reference: file with another version of the reference; None for the problem's own.
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
        row: what rank 0 measured; may lack the CUDA graph where there is an error, and is empty where nothing was.
        error: why the task did not end well, None where it did.
        usable: whether the gang can go on.
    """

    row: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    usable: bool = True
