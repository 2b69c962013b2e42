"""The parts of an attempt that figures need."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple, TypeAlias

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.rewards.baseline import Estimate, speedup_over
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right

TimedBaseline: TypeAlias = Literal["eager", "captured", "registered"]
"""The baseline as it is, as CUDA graphs, or as these on registered memory; one that was not measured is the one before
it by its name."""

SpeedupEstimate: TypeAlias = Estimate
"""The measured speedup, `point`, or the lower end of its 95 % interval, `low`."""


class AttemptOutcome(NamedTuple):
    """One attempt, as far as figures need it.

    Attributes:
        verdict: Verdict of the attempt, as `Attempt.verdict`.
        is_judged: False where the evaluator or its machine failed, or the endpoint refused the first request.
        is_evaluation: Whether something was submitted.
        is_right: Whether every check passed and nothing failed afterwards.
        speedup: Measured speedup of a right and timed kernel over the eager baseline.
        speedup_low: Lower end of the 95 % interval of `speedup`.
        captured_speedup: Measured speedup over the captured baseline.
        captured_speedup_low: Lower end of the 95 % interval of `captured_speedup`.
        registered_speedup: Measured speedup over the captured baseline on registered memory.
        registered_speedup_low: Lower end of the 95 % interval of `registered_speedup`.
        was_captured: Whether the baseline was timed as CUDA graphs.
        was_registered: Whether these were timed on registered memory.
        utilisation: Ceiling of the roofline over the time of a right kernel.
        mechanisms: Mechanisms by which a right kernel moved data; None where it was not profiled.
        calls_library: `Feedback.calls_torch_distributed`.
        completion_tokens: Number of completion tokens; None where no model reported them.
        is_trial: Whether it is an evaluation before the submission of a workspace.
        is_submission: Whether it is that submission.
    """

    verdict: str
    is_judged: bool
    is_evaluation: bool
    is_right: bool
    speedup: float | None
    speedup_low: float | None
    captured_speedup: float | None
    captured_speedup_low: float | None
    registered_speedup: float | None
    registered_speedup_low: float | None
    was_captured: bool
    was_registered: bool
    utilisation: float | None
    mechanisms: tuple[str, ...] | None
    calls_library: bool | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    reply_s: float | None
    duration_s: float | None
    is_trial: bool
    is_submission: bool


def outcome_of(attempt: Attempt) -> AttemptOutcome:
    """The outcome of one attempt."""
    feedback, tokens = attempt.feedback, attempt.tokens
    submitted = attempt.source is not None
    judged = not submitted and attempt.is_answered if feedback is None else not is_infrastructure_failure(feedback)
    right, timing, roofline, profile = False, None, None, None
    if feedback is not None and is_right(feedback):
        right, timing, roofline, profile = True, feedback.timing, feedback.roofline, feedback.profile
    return AttemptOutcome(
        attempt.verdict,
        judged,
        submitted,
        right,
        None if timing is None else timing.speedup,
        None if timing is None else timing.speedup_low,
        None if timing is None else speedup_over(timing, "captured", "point"),
        None if timing is None else speedup_over(timing, "captured", "low"),
        None if timing is None else speedup_over(timing, "registered", "point"),
        None if timing is None else speedup_over(timing, "registered", "low"),
        timing is not None and timing.baseline_graph_us is not None,
        timing is not None and timing.baseline_registered_us is not None,
        None if roofline is None else roofline.candidate_utilisation,
        None if profile is None else profile.mechanisms,
        None if feedback is None else feedback.calls_torch_distributed,
        None if tokens is None else tokens.prompt,
        None if tokens is None else tokens.completion,
        None if tokens is None else tokens.reasoning,
        attempt.cost_usd,
        attempt.reply_s,
        attempt.duration_s,
        attempt.is_trial,
        attempt.is_submission,
    )


Task: TypeAlias = tuple[object, ...]
"""The task of an agent: the problem's configuration without the seed of its inputs."""


def task_of(requested: EvalConfig) -> Task:
    """The task that a configuration asks for; sizes that are spelt differently are one."""
    size = requested.size
    if isinstance(size, dict):
        size = json.dumps(size, sort_keys=True, default=str)
    return (requested.device, requested.world_size, size, requested.dtype, requested.language, requested.protocol)
