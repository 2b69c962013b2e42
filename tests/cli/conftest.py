"""A fake evaluator that does what the source says, and `pkb` as a function."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pkb_gym.cli import main
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Profile, TraceEvent
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.examples import failed, timed

SLICE = TraceEvent(rank=1, kind="call", name="call 0", stream=None, start_us=0.5, duration_us=2)
"""The timeline of everything that passes."""


@dataclass
class FakeEvaluator:
    """Judges by the source's first word: `passed`, a failure's name, or an exception to raise."""

    key: bytes | None = None
    calls: list[tuple[str, str, EvalConfig]] = field(default_factory=list)
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: Progress | None = None) -> Feedback:
        with self.lock:
            self.calls.append((problem.name, source, config))
        if progress is not None:
            progress("compile")
        word = source.split()[0]
        if word == "usage":
            raise ConfigError(f"{problem.name}: no such thing")
        if word == "broken":
            raise InfrastructureError("the machine is on fire")
        if word == "interrupt":
            raise KeyboardInterrupt
        feedback = timed(baseline_us=100, speedup=2.0) if word == "passed" else failed(word, message="because\nof it")
        if config.trace and word == "passed":
            feedback = feedback.model_copy(update={"profile": Profile(ranks=(), trace=(SLICE,))})
        if config.language != "auto":
            feedback = feedback.model_copy(
                update={"config": feedback.config.model_copy(update={"language": config.language})}
            )
        return feedback.model_copy(update={"problem": problem.name, "source_sha256": source_sha256(source)})

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Ran:
    """What one call of `pkb` came to."""

    status: int
    out: str
    err: str
    evaluators: list[FakeEvaluator]

    @property
    def calls(self) -> list[tuple[str, str, EvalConfig]]:
        return [call for evaluator in self.evaluators for call in evaluator.calls]


Pkb = Callable[..., Ran]


@pytest.fixture
def pkb(capsys, monkeypatch) -> Pkb:
    """`pkb("eval", "AllReduce", "-", stdin=b"passed")`; every evaluator opened must have been closed."""

    def run(*argv: object, stdin: bytes = b"") -> Ran:
        opened: list[FakeEvaluator] = []

        def open_evaluator(key: bytes | None) -> FakeEvaluator:
            opened.append(FakeEvaluator(key))
            return opened[-1]

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = main([str(word) for word in argv], open_evaluator)
        captured = capsys.readouterr()
        assert all(evaluator.closed for evaluator in opened)
        return Ran(status, captured.out, captured.err, opened)

    return run
