"""An evaluator that starts nothing: it finds what the source says it will find."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig, resolve
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.rewards.examples import LAST_STAGE, failed, timed
from tests.waiting import PATIENCE_S


@dataclass
class FakeEvaluator:
    """Judges by the source's first word.

    `speedup 2.5` is right and that fast; the name of a failure fails so, with `0.5` after it as the share of right
    outputs; all other text fails to compile. What is no text at all is rejected as by a real evaluator.

    Attributes:
        meet: Barrier at which evaluations wait for each other, to prove that they run side by side.
        requested: Problem, source and configuration of each evaluation.
    """

    meet: threading.Barrier | None = None
    requested: list[tuple[str, str, EvalConfig]] = field(default_factory=list)
    closed: bool = False

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        request = problem.name, source, config
        self.requested.append(request)
        if self.meet is not None and self.requested.count(request) == 1:  # what is judged again meets nobody
            self.meet.wait(PATIENCE_S)
        device: Device = "emulated" if config.device == "emulated" else "cpu"
        resolved = resolve(config, problem, language="cpp", device=device, memory_total_bytes=host.memory_total_bytes())
        return self._found(source).model_copy(update={"problem": problem.name, "config": resolved})

    def close(self) -> None:
        self.closed = True

    @staticmethod
    def _found(source: str) -> Feedback:
        defect = Source.parse(source, "cpu").defect
        if defect is not None and "never mentions" not in defect:  # what these sources mention is what is to be found
            return failed("rejected", message=defect)
        word, _, number = source.partition(" ")
        if word == "speedup":
            return timed(baseline_us=100, roofline_us=10, speedup_low=float(number))
        if word in LAST_STAGE:
            return failed(word, earned_share=float(number or 0))
        return failed("compile_error", message="error: expected unqualified-id")
