"""Right, wrong, hanging and crashing kernels of one problem, and what is compared of their verdicts."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from tests.engine.candidates import DEADLINE_S, FOLDER


@dataclass(frozen=True)
class Case:
    """A kernel, and the failure that is expected; None where it is right."""

    name: str
    file: str
    failure: Failure | None
    last: str = "check"

    @property
    def source(self) -> str:
        return (FOLDER / self.file).read_text()

    def config(self, seed: int = 0) -> EvalConfig:
        timeout_s = DEADLINE_S if self.failure is Failure.TIMEOUT else None
        return EvalConfig(device="cpu", world_size=2, size="tiny", until=self.last, seed=seed, timeout_s=timeout_s)


CASES = (
    Case("right", "good/waits_for_peers.cpp", None, last="time"),
    Case("wrong", "broken/never_written.cpp", Failure.OUTPUT_MISMATCH, last="time"),
    Case("hanging", "broken/endless_loop.cpp", Failure.TIMEOUT),
    Case("crashing", "broken/segfault_on_one_rank.cpp", Failure.RUNTIME_ERROR),
    Case("broken", "broken/syntax_error.cpp", Failure.COMPILE_ERROR),
    Case("unloadable", "broken/no_solution.cpp", Failure.LOAD_ERROR),
)


def verdict(feedback: Feedback) -> tuple[object, ...]:
    """What every evaluator must find alike: all but times, drawn inputs and messages that quote them."""
    checked = None if feedback.check is None else feedback.check.passed
    found = (feedback.failure, feedback.stage, feedback.failed_rank, checked, feedback.timing is not None)
    return (*found, feedback.config, feedback.environment, feedback.source_sha256, feedback.problem_sha256)
