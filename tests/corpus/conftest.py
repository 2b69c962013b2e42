"""An evaluator that judges by what it finds in the text, and `pkb export` with it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pkb_gym.cli import main
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.examples import failed, timed


@dataclass
class TextEvaluator:
    """Right is what has an export, no `+ 1` and every semicolon; faster is what is shorter."""

    requested: list[tuple[str, str, EvalConfig]] = field(default_factory=list)
    fails_at: int | None = None
    """Number of the evaluation, from 0, that this machine cannot make."""
    interrupts_at: int | None = None
    only_compiles: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, progress: object = None) -> Feedback:
        with self.lock:
            number = len(self.requested)
            self.requested.append((problem.name, source, config))
        if number == self.interrupts_at:
            raise KeyboardInterrupt
        feedback = self._judge(source) if number != self.fails_at else failed("infrastructure")
        return feedback.model_copy(update={"problem": problem.name, "source_sha256": source_sha256(source)})

    def _judge(self, source: str) -> Feedback:
        if "(solution, solution)" not in source:
            return failed("load_error")
        if "recv = static_cast<char*>(out.data_ptr())\n" in source or "pkb/symm.h" not in source:
            return failed("compile_error")
        if "(r + 1)" in source or "(comm.rank + 1)" in source or "W - 1;" in source:
            return failed("output_mismatch", earned_share=0.5)
        if self.only_compiles:
            return failed("compiled_only", message="compiled; it was not run")
        return timed(baseline_us=100, speedup=1 + 500 / len(source))

    def close(self) -> None:
        pass


@dataclass
class Exported:
    """What one call of `pkb export` came to."""

    status: int
    err: str
    evaluator: TextEvaluator


@pytest.fixture
def export(capsys):
    """`export("corpus", "--out", folder, evaluator=...)`."""

    def run(*argv: object, evaluator: TextEvaluator | None = None) -> Exported:
        judge = evaluator or TextEvaluator()
        capsys.readouterr()
        status = main(["export", *map(str, argv)], lambda _key: judge)
        return Exported(status, capsys.readouterr().err, judge)

    return run


@pytest.fixture
def small() -> tuple[str, ...]:
    """Options of a small corpus."""
    common = ("--problems", "AllGather", "AllToAll", "--world-size", "2", "--style", "brief", "--jobs", "2")
    return (*common, "--variants-per-problem", "6", "--repairs-per-problem", "6")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"
