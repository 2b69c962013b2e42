"""An evaluator that starts nothing: it finds, waits, breaks or ends its process as the source says."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import EvalConfig, last_stage
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.rewards.examples import LAST_STAGE, failed
from tests.envs.fake_evaluator import FakeEvaluator
from tests.waiting import PATIENCE_S

BEYOND_COMPILING = frozenset(LAST_STAGE) - {"rejected", "compile_error"} | {"speedup"}


class FakePoolEvaluator:
    """`FakeEvaluator`'s words in the first line; each further line is a command with the path of a file.

    `log` has each evaluation add a line to the file: last stage, seed, artifact found or not, process. In gangs alone:
    `wait` waits for the file; `die_once`, `break_once` and `infrastructure_once` make the file and then end the
    process, raise, or fail; `infrastructure` fails always; `hang` never returns while the file is not there.
    """

    def __init__(self, *, key: bytes, cache: CompileCache) -> None:
        self.key, self._cache, self._fake = key, cache, FakeEvaluator()
        self.closed = False

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        words, *commands = source.splitlines() or [""]
        known = self._compiled(source)
        for command in commands:
            name, _, path = command.partition(" ")
            if name == "log":
                last = last_stage(config.until, untimed=False, device="cpu")
                with open(path, "a") as file:
                    file.write(f"{last} {config.seed} {'found' if known else 'compiled'} {os.getpid()}\n")
            elif config.until != "compile":
                feedback = self._obey(name, Path(path), progress)
                if feedback is not None:
                    return feedback
        if config.until == "compile" and words.partition(" ")[0] in BEYOND_COMPILING:
            return _cut(self._fake.evaluate(problem, "speedup 1", config), Stage.COMPILE)
        feedback = self._fake.evaluate(problem, words, config)
        if config.until == "check" and feedback.passed:
            return _cut(feedback, Stage.CHECK)
        return feedback

    def close(self) -> None:
        self.closed = True

    def _compiled(self, source: str) -> bool:
        key = CompileCache.key(fake=source)
        if self._cache.get(key) is not None:
            return True
        self._cache.put(key, Artifact(ok=True, log="", duration_s=0.0, binary=secrets.token_bytes(64)))
        return False

    def _obey(self, name: str, path: Path, progress: Progress | None) -> Feedback | None:
        if name in ("die_once", "break_once", "infrastructure_once"):
            if path.exists():
                return None
            path.touch()
            name = name.removesuffix("_once")
        if name == "die":
            os._exit(1)
        elif name == "break":
            raise ZeroDivisionError("a mistake of ours")
        elif name == "refuse":
            raise InfrastructureError("no room")
        elif name == "infrastructure":
            return failed("infrastructure", message="the machine is on fire")
        elif name in ("wait", "hang"):
            if progress is not None:
                progress("check")
            _wait_for(path)
            if progress is not None:
                progress("time")
        return None


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{path} never came")
        time.sleep(0.01)


def _cut(feedback: Feedback, stage: Stage) -> Feedback:
    """What is known once a stage before the timing has completed."""
    return feedback.model_copy(update={"stage": stage, "timing": None, "roofline": None, "profile": None})
