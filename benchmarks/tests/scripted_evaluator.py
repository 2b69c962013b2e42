"""An evaluator that starts nothing: `speedup 2` is right and that fast, every other source fails to compile."""

from __future__ import annotations

from dataclasses import dataclass, field

from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.examples import failed, timed


@dataclass
class ScriptedEvaluator:
    """Answers at once; a service may own it.

    Attributes:
        requested: Source and configuration of each evaluation.
    """

    requested: list[tuple[str, EvalConfig]] = field(default_factory=list)

    def resolve(self, problem: Problem, source: str, config: EvalConfig) -> ResolvedConfig:
        total = host.memory_total_bytes()
        return resolve(config, problem, language="cpp", device="cpu", memory_total_bytes=total)

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        self.requested.append((source, config))
        word, _, number = source.partition(" ")
        found = timed(speedup_low=float(number)) if word == "speedup" else failed("compile_error")
        names = {"problem": problem.name, "source_sha256": source_sha256(source)}
        return found.model_copy(update=names | {"config": self.resolve(problem, source, config)})

    def pause(self, timeout_s: float | None = None) -> bool:
        return True

    def resume(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing was started."""
