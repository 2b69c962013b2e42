"""Attempts as the page shows them: a line in a list, and the details behind it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.check_report import Mismatch
from pkb_gym.engine.records.feedback import Feedback, RankProfile, TraceEvent
from pkb_gym.engine.records.timing import SpeedupOver
from pkb_gym.engine.support.printable import printable
from pkb_gym.engine.support.user_objects import is_reference
from pkb_gym.envs.text.formatting import cut_middle, time_text
from pkb_gym.rewards.presets import find_reward
from pkb_gym.rewards.reward import ItemisedReward, is_infrastructure_failure

SOURCE_CHARS, LOG_CHARS, REPLY_CHARS = 200_000, 20_000, 20_000
"""Longer texts are cut in the middle."""

MAX_EVENTS = 400
"""Maximum number of events of a timeline on GPUs."""


class MismatchPicture(Record):
    """The errors in an output."""

    text: str
    shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...] | None
    worst: tuple[int, ...] | None


class RankBar(Record):
    """The parts of a rank's time in a call, in microseconds."""

    rank: int
    compute: float
    communication: float
    waiting: float
    host: float


class Slice(Record):
    """One event of a timeline, in microseconds."""

    rank: int
    kind: str
    name: str
    start: float
    duration: float


class AttemptDetails(Record):
    """The details of one attempt; texts are printable, parts that are not known are left out."""

    source: str | None = None
    is_python: bool = False
    """Whether the source is Python, and else C++."""
    reply: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    """The endpoint's words where it refused the request or filtered the reply."""
    message: str | None = None
    compiler_log: str | None = None
    output: str | None = None
    findings: tuple[str, ...] = ()
    mismatches: tuple[MismatchPicture, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Names and values for people."""
    reward_parts: dict[str, float] | None = None
    durations_s: dict[str, float] = Field(default_factory=dict)
    ranks: tuple[RankBar, ...] = ()
    trace: tuple[Slice, ...] = ()


def trajectory(attempt: Attempt, *, with_replies: bool = True) -> AttemptDetails:
    """The details of an attempt.

    Args:
        attempt: Attempt to show.
        with_replies: Whether the model's reply and reasoning are kept.
    """
    feedback = attempt.feedback
    source = _text(attempt.source, SOURCE_CHARS)
    language = attempt.requested.language if feedback is None else feedback.config.language
    trajectory = AttemptDetails(
        source=source,
        is_python=language in ("python", "triton"),
        reply=_text(attempt.reply, REPLY_CHARS) if with_replies else None,
        reasoning=_text(attempt.reasoning, REPLY_CHARS) if with_replies else None,
        refusal=_text(attempt.refusal, LOG_CHARS),
        reward_parts=reward_parts(attempt),
        facts=_facts(attempt),
    )
    if feedback is None:
        return trajectory
    profile, check = feedback.profile, feedback.check
    return trajectory.model_copy(
        update={
            "message": _text(feedback.message, LOG_CHARS),
            "compiler_log": None if feedback.compile is None else _text(feedback.compile.log, LOG_CHARS),
            "output": _text(feedback.output, LOG_CHARS),
            "findings": _findings(feedback),
            "mismatches": () if check is None else tuple(map(_mismatch, check.mismatches)),
            "durations_s": {name: round(seconds, 4) for name, seconds in feedback.durations_s.items()},
            "ranks": () if profile is None else tuple(map(_rank, profile.ranks)),
            "trace": () if profile is None else tuple(map(_slice, profile.trace[:MAX_EVENTS])),
        }
    )


def reward_parts(attempt: Attempt) -> dict[str, float] | None:
    """Summands of the attempt's reward; None where its reward has none or is a user's.

    A reward of a user's (`module:function`) is not imported: what a file of results names is not to be run.
    """
    feedback, name = attempt.feedback, attempt.reward_name
    if feedback is None or name is None or is_infrastructure_failure(feedback):
        return None
    if is_reference(name.partition("@")[0]):
        return None
    try:
        reward = find_reward(name)
    except ConfigError:
        return None
    if not isinstance(reward, ItemisedReward):
        return None
    return {printable(part): round(value, 6) for part, value in reward.parts(feedback).items()}


def order_of(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts as lists show them: by agent, in order of first appearance, then problem, sample, file and turn."""
    agents = {name: place for place, name in enumerate(dict.fromkeys(attempt.agent for attempt in attempts))}
    return sorted(
        attempts,
        key=lambda attempt: (
            agents[attempt.agent],
            attempt.problem,
            attempt.requested.seed,
            attempt.sample,
            attempt.file or "",
            attempt.turn,
        ),
    )


def _facts(attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """The figures of an attempt in words, those of its speed first."""
    facts: list[tuple[str, str | None]] = []
    if (feedback := attempt.feedback) is not None:
        facts += _speed_facts(feedback)
    facts.append(("reward", None if attempt.reward is None else f"{attempt.reward:+.3f} ({attempt.reward_name})"))
    if feedback is not None:
        config = feedback.config
        facts += [
            ("right elements", None if feedback.check is None else f"{feedback.check.right_share:.2%}"),
            ("stage", None if feedback.stage is None else feedback.stage.value),
            ("evaluated on", f"{config.device}, {config.world_size} ranks, {config.size}, {config.dtype}"),
            ("hardware", feedback.environment.hardware),
            ("language", config.language),
        ]
    if (tokens := attempt.tokens) is not None:
        facts.append(("tokens", f"{tokens.prompt} read, {tokens.completion} written"))
    facts += [
        ("reply ended by", attempt.finish_reason),
        ("cost", None if attempt.cost_usd is None else f"${attempt.cost_usd:.4f}"),
        ("reply", None if attempt.reply_s is None else f"{attempt.reply_s:.1f} s"),
        ("evaluation", None if attempt.duration_s is None else f"{attempt.duration_s:.1f} s"),
        ("file", attempt.file),
    ]
    return tuple((name, printable(value)) for name, value in facts if value is not None)


def _speed_facts(feedback: Feedback) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    timing, roofline = feedback.timing, feedback.roofline
    if timing is not None:
        speeds = [_speed(timing.over_eager, "baseline")]
        if timing.over_captured is not None:
            captured = _speed(timing.over_captured, "captured baseline")
            speeds.insert(0 if timing.leading.baseline == "captured" else 1, captured)
        if timing.over_registered is not None:
            speeds.append(_speed(timing.over_registered, "captured baseline on registered memory"))
        facts += [fact for speed in speeds for fact in speed]
        facts.append(("candidate", time_text(timing.candidate_us)))
        if not timing.converged:
            facts.append(("timing", "≈ its interval did not become tight within the budget"))
    if roofline is not None and roofline.candidate_utilisation is not None:
        binds = "" if roofline.binds is None else f", bound by {roofline.binds}"
        facts.append(("of the roofline", f"{roofline.candidate_utilisation:.1%}{binds}"))
    if feedback.profile is not None and feedback.profile.mechanisms:
        facts.append(("mechanisms", ", ".join(feedback.profile.mechanisms)))
    return facts


def _speed(over: SpeedupOver, name: str) -> list[tuple[str, str]]:
    return [
        (f"speedup over {name}", f"{over.speedup:.3g} (95 % interval {over.low:.3g} to {over.high:.3g})"),
        (name, time_text(over.baseline_us)),
    ]


def _findings(feedback: Feedback) -> tuple[str, ...]:
    found = [f"{finding.code}: {finding.detail}" for finding in feedback.integrity]
    found += [f"sanitizer {report.sanitizer}: {report.summary}" for report in feedback.sanitizers]
    if feedback.race is not None:
        found.append(f"race: {feedback.race.kind}: {feedback.race}. {feedback.race.evidence}")
    return tuple(map(printable, found))


def _mismatch(mismatch: Mismatch) -> MismatchPicture:
    return MismatchPicture(
        text=printable(str(mismatch)), shape=mismatch.shape, box=mismatch.bounding_box, worst=mismatch.worst_index
    )


def _rank(rank: RankProfile) -> RankBar:
    return RankBar(
        rank=rank.rank,
        compute=round(rank.compute_us, 3),
        communication=round(rank.communication_us, 3),
        waiting=round(rank.waiting_us, 3),
        host=round(rank.host_us, 3),
    )


def _slice(event: TraceEvent) -> Slice:
    return Slice(
        rank=event.rank,
        kind=event.kind,
        name=printable(event.name, 80),
        start=round(event.start_us, 2),
        duration=round(event.duration_us, 2),
    )


def _text(text: str | None, max_chars: int) -> str | None:
    return cut_middle(printable(text), max_chars) if text else None
