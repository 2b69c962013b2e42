"""The taskset: one task for each problem, scored by the submissions of the rollout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import verifiers.v1 as vf

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.problem import CATEGORIES
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.envs.session import SubmissionSession
from pkb_gym.envs.suite import split_names
from pkb_gym.problems.catalogue import expert_source, find_problem, reference_source
from pkb_verifiers.config import KernelTaskConfig, KernelTasksetConfig, SubmitConfig
from pkb_verifiers.state import INFO, KernelState, episode_of
from pkb_verifiers.toolset import KernelToolset

logger = logging.getLogger(__name__)

SUBMIT = KernelToolset.submit.__name__
NO_OP = "\n\ndef solution(*args, **kwargs):\n    return None\n"


class KernelData(vf.TaskData):
    """One problem."""

    problem: str
    """Name of the problem."""
    seed: int
    """Fixes the inputs."""


class KernelTask(vf.Task[KernelData, KernelState, KernelTaskConfig]):
    """Rewards, metrics, the budget, and the check with the expert kernel."""

    @property
    def key(self) -> str:
        """The problem and the seed: it lasts while texts of tasks are improved."""
        return f"{self.data.problem}-v0/{self.data.seed}"

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:  # noqa: ARG002  # the framework's signature
        """Names the problem to the tool server."""
        trace.state.problem, trace.state.seed = self.data.problem, self.data.seed

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:  # noqa: ARG002
        """Keeps the submissions in the trace, so that it can be scored again."""
        trace.info[INFO] = [attempt.model_dump(mode="json") for attempt in trace.state.attempts]

    @vf.stop
    async def budget(self, trace: vf.Trace) -> bool:
        """Whether all submissions are spent, also by calls without a source, or the evaluator failed."""
        calls = [call for message in trace.assistant_messages for call in message.tool_calls or ()]
        return trace.state.is_over or sum(call.name == SUBMIT for call in calls) >= self.config.max_turns

    @vf.reward
    async def best_value(self, trace: vf.Trace) -> float:
        """The value of the best submission.

        Raises:
            InfrastructureError: A submission was not judged: the rollout has an error and no reward.
        """
        value = episode_of(trace, self.config).episode_value
        if value is None:
            raise InfrastructureError("the evaluator failed in this rollout; it has no reward")
        return value

    @vf.metric
    async def correct(self, trace: vf.Trace) -> float:
        """1 where a submission passed the check, else 0."""
        turns = episode_of(trace, self.config).turns
        return float(any(turn.feedback is not None and turn.feedback.is_correct for turn in turns))

    @vf.metric
    async def speedup(self, trace: vf.Trace) -> float:
        """The speedup of the best submission over the baseline; 0 where none was timed."""
        best = episode_of(trace, self.config).best
        return 0.0 if best is None else best.speedup

    @vf.metric
    async def roofline(self, trace: vf.Trace) -> float:
        """Ceiling over time of the best submission; 0 where none was timed."""
        best = episode_of(trace, self.config).best
        placed = None if best is None or best.feedback is None else best.feedback.roofline
        return 0.0 if placed is None else placed.candidate_utilisation or 0.0

    async def validate(self, runtime: vf.Runtime) -> bool | None:  # noqa: ARG002
        """Whether the expert kernel passes and a kernel that does nothing fails; None where there is no expert."""
        return await asyncio.to_thread(self._validate)

    def _validate(self) -> bool | None:
        problem = find_problem(self.data.problem)
        expert = expert_source(problem, {"cpu": "cpp", "cuda": "cu"}[self.config.device])
        if expert is None:
            return None
        session = self.config.episode(problem.name).open_session(problem.name)
        session.reset(problem.name, self.data.seed)
        nothing = _judged(session, reference_source(problem) + NO_OP)
        if nothing.failure is None:
            logger.warning("%s: a kernel that does nothing passed", problem.name)
            return False
        found = _judged(session, expert)
        if not found.passed:
            logger.warning("%s: the expert kernel failed: %s, %s", problem.name, found.failure, found.message)
        return found.passed


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    """The problems of a split."""

    def load(self) -> Iterator[KernelTask]:
        """One task for each problem, in upstream order."""
        config = self.config
        is_split = config.split in ("train", "test", "all", *CATEGORIES)
        listed = config.split if is_split else [name.strip() for name in config.split.split(",")]
        for name in split_names(listed):
            prompt = config.task.episode(name).open_session(name).reset(name, config.seed)
            yield KernelTask(KernelData(id=name, name=name, prompt=prompt, problem=name, seed=config.seed), config.task)

    @classmethod
    def toolsets(cls, config: KernelTasksetConfig) -> list[vf.Toolset]:
        """The server of `submit`."""
        return [KernelToolset(SubmitConfig(**config.tools.model_dump(), task=config.task))]


def _judged(session: SubmissionSession, source: str) -> Feedback:
    reply = session.submit(source)
    feedback = None if reply.turn is None else reply.turn.feedback
    if feedback is None or feedback.failure is Failure.INFRASTRUCTURE:
        raise InfrastructureError(reply.text)
    return feedback
