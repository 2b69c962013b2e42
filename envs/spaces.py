"""The spaces: source text as action, a Dict of texts and numbers as observation."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES
from pkb_gym.envs.episode import Episode
from pkb_gym.envs.source_text import SourceText
from pkb_gym.envs.text.feedback import compiler_text, correctness_text, feedback_text
from pkb_gym.envs.text.formatting import cut_middle
from pkb_gym.envs.text.profile import profile_text

MAX_TEXT_CHARS = 200_000
"""Longest text of an observation."""

MAX_TIME_US = 1e12
MAX_RATIO = 1e9
MAX_TURNS = 2**31 - 1

STAGES: tuple[Stage, ...] = tuple(Stage)
FAILURES: tuple[Failure, ...] = tuple(Failure)

Floats: TypeAlias = NDArray[np.float64]
Observation: TypeAlias = "dict[str, str | np.int64 | NDArray[Any]]"


def action_space() -> SourceText:
    """Kernel source. Longer text may be submitted too: it is rejected as any other text that is no source."""
    return SourceText(MAX_SOURCE_BYTES)


def observation_space() -> spaces.Dict:
    """The space of an observation; `PKBEnv` and `observe` explain the entries.

    Numbers that were not measured are 0, and a flag beside them (`is_...`) marks them.
    """
    text = MAX_TEXT_CHARS
    return spaces.Dict(
        {
            "task": SourceText(text),
            "feedback": SourceText(text),
            "stage": spaces.Discrete(1 + len(STAGES)),
            "failure": spaces.Discrete(1 + len(FAILURES)),
            "compiler_log": SourceText(text),
            "correctness_report": SourceText(text),
            "profiler_report": SourceText(text),
            "right_share": spaces.Box(0.0, 1.0, (1,), np.float64),
            "is_checked": spaces.Discrete(2),
            "times_us": spaces.Box(0.0, MAX_TIME_US, (2,), np.float64),
            "speedup": spaces.Box(0.0, MAX_RATIO, (3,), np.float64),
            "speedup_captured": spaces.Box(0.0, MAX_RATIO, (3,), np.float64),
            "is_timed": spaces.Discrete(2),
            "roofline_us": spaces.Box(0.0, MAX_TIME_US, (5,), np.float64),
            "utilisation": spaces.Box(0.0, MAX_RATIO, (2,), np.float64),
            "is_placed": spaces.Discrete(2),
            "turn": spaces.Box(0, MAX_TURNS, (1,), np.int64),
            "turns_left": spaces.Box(0, MAX_TURNS, (1,), np.int64),
            "is_limited": spaces.Discrete(2),
            "best_turn": spaces.Box(0, MAX_TURNS, (1,), np.int64),
            "best_value": spaces.Box(-MAX_RATIO, MAX_RATIO, (1,), np.float64),
            "best_speedup": spaces.Box(0.0, MAX_RATIO, (1,), np.float64),
            "best_source": SourceText(MAX_SOURCE_BYTES),
        }
    )


def observe(task: str, episode: Episode, turns_left: int | None = None) -> Observation:
    """One observation, always inside `observation_space`.

    Args:
        task: Task text.
        episode: Episode with the submissions so far.
        turns_left: Number of turns until the episode is truncated; None for no limit.

    Returns:
        Fresh objects: `stage` is 0 for none, else 1 + position in `STAGES`, and likewise `failure`; `times_us` is
        (baseline, candidate); `speedup` is (estimate, low, high) over the eager baseline, and `speedup_captured`
        over the captured one, 0 without one; `roofline_us` is (ceiling, matrix, vector, memory, link); `utilisation` is
        (baseline, candidate).
    """
    feedback, turn, best = episode.feedback, len(episode.turns), episode.best
    timing = None if feedback is None else feedback.timing
    roofline = None if feedback is None else feedback.roofline
    check = None if feedback is None else feedback.check
    stage = None if feedback is None else feedback.stage
    failure = None if feedback is None else feedback.failure
    times = (0.0, 0.0) if timing is None else (timing.baseline_us, timing.candidate_us)
    speedup = (0.0,) * 3 if timing is None else timing.over_eager[2:]
    captured = (0.0,) * 3 if timing is None or timing.over_captured is None else timing.over_captured[2:]
    ceilings, utilisation = (0.0,) * 5, (0.0, 0.0)
    if roofline is not None:
        parts = roofline.times
        ceilings = (roofline.ceiling_us, parts.matrix_us, parts.vector_us, parts.memory_us, parts.link_us)
        utilisation = (roofline.baseline_utilisation or 0.0, roofline.candidate_utilisation or 0.0)
    return {
        "task": cut_middle(task, MAX_TEXT_CHARS),
        "feedback": "" if feedback is None else feedback_text(feedback),
        "stage": np.int64(0 if stage is None else 1 + STAGES.index(stage)),
        "failure": np.int64(0 if failure is None else 1 + FAILURES.index(failure)),
        "compiler_log": "" if feedback is None else cut_middle(compiler_text(feedback), MAX_TEXT_CHARS),
        "correctness_report": "" if feedback is None else cut_middle(correctness_text(feedback), MAX_TEXT_CHARS),
        "profiler_report": "" if feedback is None else cut_middle(profile_text(feedback), MAX_TEXT_CHARS),
        "right_share": _floats((0.0 if check is None else check.right_share,), 1.0),
        "is_checked": np.int64(check is not None),
        "times_us": _floats(times, MAX_TIME_US),
        "speedup": _floats(speedup, MAX_RATIO),
        "speedup_captured": _floats(captured, MAX_RATIO),
        "is_timed": np.int64(timing is not None),
        "roofline_us": _floats(ceilings, MAX_TIME_US),
        "utilisation": _floats(utilisation, MAX_RATIO),
        "is_placed": np.int64(roofline is not None),
        "turn": np.array([min(turn, MAX_TURNS)], np.int64),
        "turns_left": np.array([min(max(turns_left or 0, 0), MAX_TURNS)], np.int64),
        "is_limited": np.int64(turns_left is not None),
        "best_turn": np.array([min(0 if best is None else best.number, MAX_TURNS)], np.int64),
        "best_value": np.clip(np.array([episode.best_value or 0.0]), -MAX_RATIO, MAX_RATIO),
        "best_speedup": _floats((0.0 if best is None else best.speedup,), MAX_RATIO),
        "best_source": "" if best is None else best.source[:MAX_SOURCE_BYTES],
    }


def _floats(values: tuple[float, ...], most: float) -> Floats:
    """Numbers within [0, most]."""
    return np.clip(np.array(values, np.float64), 0.0, most)
