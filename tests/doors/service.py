"""The evaluation service that all doors share: it judges the contract once, says so, and serves until its input ends.

python -m tests.doors.service CONTRACT.json     (PKB_TOKEN is the token)
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support import env_vars
from pkb_gym.envs.evaluator_registry import close_evaluators
from tests.doors.contract import (
    BODIES,
    CASES,
    FAILURES,
    INFRASTRUCTURE,
    PROBLEMS,
    SEED,
    SETTINGS,
    Expected,
    source_of,
    write,
)
from tests.serve.forwarding import Forwarding, serving

CASES_IN_ORDER = sorted(CASES, key=("deadlock", "expert", *CASES).index)
"""Deadlocks leave the processors to the compiler, which the experts need."""


@dataclass
class TwoGangs(Forwarding):
    """Two local evaluators, whose machine fails wherever a source asks for it.

    Attributes:
        deadlocks: Whether sources are judged that end by their deadline, which would hold up the others.
    """

    deadlocks: LocalEvaluator

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        if BODIES["deadlock"] in source:
            return self.deadlocks.evaluate(problem, source, config, progress, replay_key=replay_key)
        if INFRASTRUCTURE not in source:
            return super().evaluate(problem, source, config, progress, replay_key=replay_key)
        rejected = super().evaluate(problem, "", config, progress, replay_key=replay_key)
        changes = {"failure": Failure.INFRASTRUCTURE, "message": "a disk of this machine is full"}
        return Feedback.model_validate(rejected.model_copy(update=changes).model_dump())

    def close(self) -> None:
        self.deadlocks.close()
        super().close()


def task_of(url: str, problem: str) -> str:
    """Its text; made after the first timing, as it gives the speed of the service's machine once that was measured."""
    return EpisodeSettings.of({**SETTINGS, "evaluator": url}).open_session(problem).reset(problem, seed=SEED)


def judge(url: str, problem: str, case: str) -> Expected:
    """The outcome of one submission, alone in its episode, in the environment of pkb-gym itself; without its task."""
    session = EpisodeSettings.of({**SETTINGS, "evaluator": url}).open_session(problem)
    session.reset(problem, seed=SEED)
    source = source_of(problem, case)
    reply = session.submit(source)
    turn = reply.turn
    assert turn is not None and turn.feedback is not None, reply.text
    assert turn.feedback.failure == FAILURES[case], f"{problem}, {case}: {reply.text}"
    assert turn.feedback.config is not None
    return Expected(
        problem=problem,
        case=case,
        source=source,
        task="",
        text=reply.text,
        failure=FAILURES[case],
        value=turn.value,
        reward=turn.reward if turn.is_valid else None,
        speedup=turn.speedup,
        seed=turn.feedback.config.seed,
    )


def main(path: Path) -> None:
    with ExitStack() as stack:
        compiled = env_vars.cache_dir()
        # Failures are part of the contract, and no reason to replace the evaluator.
        server = stack.enter_context(
            serving(
                lambda: TwoGangs(LocalEvaluator(cache_dir=compiled), LocalEvaluator(cache_dir=compiled)),
                os.environ["PKB_TOKEN"],
                max_failures=None,
            )
        )
        stack.callback(close_evaluators)
        cases = [(problem, case) for case in CASES_IN_ORDER for problem in PROBLEMS]
        threads = stack.enter_context(ThreadPoolExecutor(len(cases)))
        judged = list(threads.map(lambda each: judge(server.url, *each), cases))
        tasks = {problem: task_of(server.url, problem) for problem in PROBLEMS}
        expected = [replace(each, task=tasks[each.problem]) for each in judged]
        write(path, server.url, expected)
        sys.stdout.write(f"{len(expected)} submissions judged\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
