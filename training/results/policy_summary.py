"""The summary of a policy's submissions on a set of prompts, with errors that make before and after comparable."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.metrics.pass_at_k import pass_at_k
from pkb_gym.problems.splits import cluster_of
from pkb_gym.training.inputs.rows import Row

PROMPT_KEY = ("problem", "language", "size", "dtype", "world_size", "seed")
"""The columns of a prompt's key."""

BASELINE = 1.0
"""Speedup above which a right kernel counts for fast_p."""


class Figures(Record):
    """Figures of one problem's prompts, or of all. Each prompt counts the same; None where nothing could be judged.

    Errors and intervals of all prompts are clustered by near-duplicate problems, and those of one problem by prompt.
    """

    prompts: int
    samples: int
    """Episodes that could be judged."""
    unjudged: int
    """Episodes in which the evaluator failed, which count for nothing."""
    reward: Estimate | None
    """Value of an episode's best submission."""
    correct: Estimate | None
    """Share of episodes with a right submission."""
    fast: Estimate | None
    """fast_p at p = 1: share of episodes with a right submission that is faster than the baseline."""
    speedup_median: float | None
    """Median of the right submissions' speedups, the best of each episode; None without any."""
    pass_at: dict[str, Estimate]
    """Chance, by k, that at least one of k episodes on a prompt has a right submission."""


class PolicySummary(Record):
    """The result of `evaluate_policy.py`."""

    total: Figures
    problems: dict[str, Figures]
    gain: Estimate | None = None
    """The gain in reward over the earlier policy that it was compared with, prompt by prompt."""


@dataclass(frozen=True)
class EpisodeResult:
    """One episode.

    Attributes:
        reward: Reward of its best submission; None where the evaluator failed.
        is_correct: Whether a submission was right.
        speedup: Best speedup of right submissions over the eager baseline; None without any.
        captured_speedup: Best speedup of right submissions over the captured baseline; None without any.
        is_compiled: Whether a submission compiled.
        is_original: Whether a right submission is no near copy of a known text; None where rows do not say so.
    """

    reward: float | None
    is_correct: bool
    speedup: float | None
    captured_speedup: float | None = None
    is_compiled: bool = False
    is_original: bool | None = None


def summarise(rows: Sequence[Row], before: Sequence[Row] | None = None) -> PolicySummary:
    """Figures from result rows.

    Args:
        rows: Rows of `evaluate_policy.py`, one for each submission.
        before: Rows of an earlier policy on the same prompts.
    """
    prompts = episodes_by_prompt(rows)
    by_problem: dict[str, dict[str, list[EpisodeResult]]] = {}
    for key, episodes in prompts.items():
        by_problem.setdefault(problem_of(key), {})[key] = episodes
    return PolicySummary(
        total=figures_of(prompts, cluster_of_prompt),
        problems={
            problem: figures_of(of_problem, lambda key: key) for problem, of_problem in sorted(by_problem.items())
        },
        gain=None if before is None else gain(episodes_by_prompt(before), prompts),
    )


def episodes_by_prompt(rows: Iterable[Row]) -> dict[str, list[EpisodeResult]]:
    """Episodes of each prompt, whose key is `prompt_key`."""
    return {key: [episode_result(rows) for rows in episodes] for key, episodes in turns_by_prompt(rows).items()}


def turns_by_prompt(rows: Iterable[Row]) -> dict[str, list[list[Row]]]:
    """The rows of each episode, of each prompt."""
    turns: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        turns.setdefault(prompt_key(row), {}).setdefault(row["sample"], []).append(row)
    return {key: [samples[sample] for sample in sorted(samples)] for key, samples in turns.items()}


def prompt_key(row: Mapping[str, object]) -> str:
    """The key of a prompt, as text; of a row of the prompts or of the results."""
    size = str(row["size"])
    size = json.dumps(json.loads(size), sort_keys=True) if size.startswith("{") else size
    return json.dumps([size if column == "size" else row[column] for column in PROMPT_KEY])


def reward_of(episode: EpisodeResult) -> float | None:
    """The value of an episode's best submission; None where it was not judged."""
    return episode.reward


def fast_captured_of(episode: EpisodeResult) -> float | None:
    """1 for an episode with a right submission faster than the captured baseline, else 0; None where not judged."""
    return None if episode.reward is None else float((episode.captured_speedup or 0.0) > BASELINE)


def gain(
    before: Mapping[str, Sequence[EpisodeResult]], after: Mapping[str, Sequence[EpisodeResult]]
) -> Estimate | None:
    """Difference of the mean rewards over the prompts that both answered: prompts that are hard for both cancel.

    Args:
        before: Prompt key -> episodes before training.
        after: Prompt key -> episodes after training.
    """
    differences: dict[str, list[float]] = {}
    for key in sorted(before.keys() & after.keys()):  # a set has no order, and sums of floats depend on it
        old, new = _mean(before[key], reward_of), _mean(after[key], reward_of)
        if old is not None and new is not None:
            differences.setdefault(cluster_of_prompt(key), []).append(new - old)
    return estimate(differences.values())


def episode_result(rows: Sequence[Row]) -> EpisodeResult:
    """The figures of one episode's rows, as many as there are turns."""
    # A reply without a submission has the value of none, which may be more than that of a bad one.
    submitted = [row for row in rows if row.get("failure") != NO_SUBMISSION] or rows
    rewards = [row["reward"] for row in submitted]
    speedups = [row["speedup"] for row in rows if row["is_right"] and row["speedup"] is not None]
    copies = [row["near_copy"] for row in rows if row["is_right"] and row.get("near_copy") is not None]
    captured = [row["captured_speedup"] for row in rows if row["is_right"] and row.get("captured_speedup") is not None]
    return EpisodeResult(
        reward=None if None in rewards else max(rewards),
        is_correct=any(row["is_right"] for row in rows),
        speedup=max(speedups, default=None),
        captured_speedup=max(captured, default=None),
        is_compiled=any(_has_compiled(row) for row in rows),
        is_original=not all(copies) if any("near_copy" in row for row in rows) else None,
    )


def _has_compiled(row: Row) -> bool:
    return row.get("stage") is not None and Stage(row["stage"]).order >= Stage.COMPILE.order


def problem_of(key: str) -> str:
    """The problem of a prompt, from its key."""
    return str(json.loads(key)[0])


def cluster_of_prompt(key: str) -> str:
    """The cluster of a prompt's problem, from the prompt's key."""
    return cluster_of(problem_of(key))


def figures_of(prompts: Mapping[str, list[EpisodeResult]], cluster_of: Callable[[str], str]) -> Figures:
    """Figures of the prompts; those with the same cluster are no independent evidence."""
    judged = {key: [episode for episode in of if episode.reward is not None] for key, of in prompts.items()}
    judged = {key: episodes for key, episodes in judged.items() if episodes}
    everything = [episode for episodes in judged.values() for episode in episodes]
    fewest = min(map(len, judged.values()), default=0)
    speedups = [episode.speedup for episode in everything if episode.speedup is not None]

    def over_prompts(value: Callable[[list[EpisodeResult]], float | None]) -> Estimate | None:
        clusters: dict[str, list[float]] = {}
        for key, episodes in judged.items():
            if (found := value(episodes)) is not None:
                clusters.setdefault(cluster_of(key), []).append(found)
        return estimate(clusters.values())

    def pass_at(k: int) -> Estimate | None:
        return over_prompts(lambda of: pass_at_k(len(of), sum(episode.is_correct for episode in of), k))

    return Figures(
        prompts=len(prompts),
        samples=len(everything),
        unjudged=sum(map(len, prompts.values())) - len(everything),
        reward=over_prompts(lambda of: _mean(of, reward_of)),
        correct=over_prompts(lambda of: _mean(of, lambda episode: float(episode.is_correct))),
        fast=over_prompts(lambda of: _mean(of, lambda episode: float((episode.speedup or 0.0) > BASELINE))),
        speedup_median=statistics.median(speedups) if speedups else None,
        pass_at={str(k): at for k in _powers_of_two(fewest) if (at := pass_at(k)) is not None},
    )


def _mean(episodes: Iterable[EpisodeResult], value: Callable[[EpisodeResult], float | None]) -> float | None:
    values = [found for episode in episodes if (found := value(episode)) is not None]
    return statistics.fmean(values) if values else None


def _powers_of_two(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length()) if 2**power <= limit]
