"""Arms of a learning run: trainings with other options from the same SFT, compared with that of the first seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.learning_feedback import after_turns
from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import EpisodeResult, correct_of, gain, reward_of
from pkb_gym.training.results.ring_summary import summarise_rings

LAST = 0.2
"""Share of the submissions, the last ones, that a training's mean reward is of."""


@dataclass(frozen=True)
class Trained:
    """A training and the policy that it gave.

    Attributes:
        about: `about.json` of its run.
        rows: results on the rings.
        rollouts: lines of its `rollouts.jsonl`.
    """

    about: Mapping[str, Any]
    rows: Sequence[Row]
    rollouts: Sequence[Row]


def arm_figures(arm: Trained, other: Trained, sft: Sequence[Row], rings: Mapping[str, str]) -> dict[str, Any]:
    """An arm beside the training of the same seed without its options.

    Args:
        arm: with results on the rings.
        other: likewise.
        sft: results of the policy that both began with; may be empty.
        rings: prompt key -> ring.
    """
    equal = min(submissions_of(arm.rollouts), submissions_of(other.rollouts))
    named = {name: arm.about.get(name) for name in ("arm", "seed", "date", "commit", "spent_s")}
    found: dict[str, Any] = named | {"equal_submissions": equal, "trainings": {}}
    for name, one in (("arm", arm), ("other", other)):
        found["trainings"][name] = {
            "options": one.about.get("options", {}),
            "submissions": submissions_of(one.rollouts),
            "evaluations": sum(not row["is_duplicate"] for row in one.rollouts if row["failure"] != NO_SUBMISSION),
            "curve": (curve := by_submissions(one.rollouts)),
            "at_equal_submissions": last_means(curve, equal),
            "rings": {ring: of.model_dump(mode="json") for ring, of in summarise_rings(one.rows, rings).items()},
        }
    found["gains"] = {"other": _gains(other.rows, arm.rows, rings)}
    if sft:
        found["gains"]["sft"] = _gains(sft, arm.rows, rings)
    return found


def submissions_of(rollouts: Sequence[Row]) -> int:
    """Submissions of a training, repeated ones included."""
    return sum(row["failure"] != NO_SUBMISSION for row in rollouts)


def by_submissions(rollouts: Sequence[Row]) -> list[dict[str, float]]:
    """Of each step: submissions in all so far, and of its episodes mean best reward and share right.

    `correct_first` is the share whose first turn was right. Episodes in which the evaluator failed are left out.
    """
    steps: dict[int, dict[int, list[Row]]] = {}
    for row in rollouts:
        steps.setdefault(row["step"], {}).setdefault(row["sample"], []).append(row)
    done, found = 0, []
    for step in sorted(steps):
        episodes = list(steps[step].values())
        done += sum(submissions_of(rows) for rows in episodes)
        judged = [rows for rows in episodes if all(row["reward"] is not None for row in rows)]
        if judged:
            found.append(
                {
                    "submissions": done,
                    "reward": round(fmean(max(row["reward"] for row in rows) for rows in judged), 4),
                    "correct": round(fmean(any(row["is_right"] for row in rows) for rows in judged), 4),
                    "correct_first": round(
                        fmean(min(rows, key=lambda row: row["turn"])["is_right"] for rows in judged), 4
                    ),
                }
            )
    return found


def last_means(curve: Sequence[Mapping[str, float]], submissions: int) -> dict[str, float] | None:
    """Means over the steps that end within the last `LAST` of so many submissions; None where there is none."""
    steps = [step for step in curve if (1 - LAST) * submissions < step["submissions"] <= submissions]
    names = ("reward", "correct", "correct_first")
    return {name: round(fmean(step[name] for step in steps), 4) for name in names} if steps else None


def _gains(before: Sequence[Row], after: Sequence[Row], rings: Mapping[str, str]) -> dict[str, Any]:
    """Ring -> after the first turn, and at the end -> gain in reward and share correct, paired by prompt."""

    def of(rows: Sequence[Row], turns: int | None, ring: str) -> dict[str, list[EpisodeResult]]:
        return {key: episodes for key, episodes in after_turns(rows, turns).items() if rings.get(key) == ring}

    found: dict[str, Any] = {}
    for ring in sorted(set(rings.values())):
        for name, turns in (("first", 1), ("last", None)):
            old, new = of(before, turns, ring), of(after, turns, ring)
            gains = {"reward": gain(old, new, reward_of), "correct": gain(old, new, correct_of)}
            dumped = {figure: None if one is None else one.model_dump(mode="json") for figure, one in gains.items()}
            found.setdefault(ring, {})[name] = dumped
    return found
