"""Right, wrong, hanging and crashing kernels, with the verdict that each must have wherever it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.records.config import EvalConfig, Until
from pkb_gym.engine.records.feedback import Failure

CANDIDATES = Path(__file__).resolve().parent.parent / "candidates"
HANGS_S = 1.5
"""Deadline of kernels that hang."""


@dataclass(frozen=True)
class Case:
    """A kernel and its expected verdict.

    Attributes:
        name: Short name.
        file: Path below tests/candidates.
        failure: Expected failure; None where the kernel is right.
        last: Last stage of its evaluation.
    """

    name: str
    file: str
    failure: Failure | None
    last: Until = "check"

    @property
    def source(self) -> str:
        """Its text."""
        return (CANDIDATES / self.file).read_text(encoding="utf-8")

    def config(self, seed: int = 0) -> EvalConfig:
        """The request under a seed."""
        timeout_s = HANGS_S if self.failure is Failure.TIMEOUT else None
        return EvalConfig(device="cpu", world_size=2, size="tiny", until=self.last, seed=seed, timeout_s=timeout_s)


CASES = (
    Case("right", "good/waits_for_peers.cpp", None, last="time"),
    Case("wrong", "broken/never_written.cpp", Failure.OUTPUT_MISMATCH, last="time"),
    Case("hanging", "broken/endless_loop.cpp", Failure.TIMEOUT),
    Case("crashing", "broken/segfault_on_one_rank.cpp", Failure.RUNTIME_ERROR),
    Case("broken", "broken/syntax_error.cpp", Failure.COMPILE_ERROR),
    Case("unloadable", "broken/no_solution.cpp", Failure.LOAD_ERROR),
)
