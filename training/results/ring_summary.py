"""The summary of a policy's submissions ring by ring, turn by turn, and over either baseline; see `inputs.rings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import comb

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, estimate
from pkb_gym.training.inputs.rows import Row
from pkb_gym.training.results.policy_summary import (
    BASELINE,
    EpisodeResult,
    Figures,
    cluster_of_prompt,
    episode_result,
    fast_captured_of,
    figures_of,
    problem_of,
    prompt_key,
    turns_by_prompt,
)

Episodes = Mapping[str, Sequence[EpisodeResult]]
"""Prompt key -> episodes."""

Value = Callable[[Sequence[EpisodeResult]], float | None]
"""A figure of one prompt, from its judged episodes."""


class TurnLimitFigures(Record):
    """Figures of all episodes, as if each had ended after so many turns; shorter ones stay as they ended."""

    reward: Estimate | None
    """Value of the best submission so far."""
    compiled: Estimate | None
    """Share of episodes with a submission that compiled so far."""
    correct: Estimate | None
    """Share of episodes with a right submission so far."""
    fast: Estimate | None
    """fast_1 over the eager baseline so far."""
    fast_captured: Estimate | None
    """fast_1 over the captured baseline so far."""


class RingFigures(Record):
    """Figures of one ring. Each prompt counts the same; errors are clustered by near-duplicate problems."""

    figures: Figures
    fast_captured: Estimate | None
    """Share of episodes with a right submission that is faster than the captured baseline."""
    best_of: dict[str, Estimate]
    """Expected best reward of k episodes on a prompt, by k."""
    turns: tuple[TurnLimitFigures, ...]
    """Figures after the first turn, after the second, and so on."""
    solved_problems: tuple[str, ...]
    """Problems with a right submission in any episode."""
    correct_original: Estimate | None = None
    """Share of episodes with a right submission that is no near copy of the corpus; None where it was not given."""
    solved_originally: tuple[str, ...] = ()
    """Problems with such a submission in any episode."""


def summarise_rings(rows: Sequence[Row], ring_of_prompt: Mapping[str, str]) -> dict[str, RingFigures]:
    """Figures of each ring.

    Args:
        rows: Rows of `evaluate_policy.py`, one for each submission.
        ring_of_prompt: Ring of each prompt, by `prompt_key`; other prompts are left out.
    """
    by_ring: dict[str, dict[str, list[list[Row]]]] = {}
    for key, episodes in turns_by_prompt(rows).items():
        if key in ring_of_prompt:
            by_ring.setdefault(ring_of_prompt[key], {})[key] = episodes
    return {ring: _ring(prompts) for ring, prompts in sorted(by_ring.items())}


def rings_of(prompts: Sequence[Row]) -> dict[str, str]:
    """The ring of each prompt that has one, by `prompt_key`."""
    return {prompt_key(row): row["ring"] for row in prompts if row.get("ring") is not None}


def expected_best(values: Sequence[float], k: int) -> float:
    """Expected greatest of k values drawn without replacement from n: unbiased for the best of k samples.

        E = sum over i of C(i - 1, k - 1) / C(n, k) * x_(i),    x_(1) <= ... <= x_(n)

    x_(i) is the greatest of C(i - 1, k - 1) of the C(n, k) choices: pass@k (see `metrics.pass_at_k`) for values other
    than 0 and 1.

    Raises:
        ValueError: there are fewer than k values.

    Example:
        >>> expected_best([0.0, 1.0, 2.0], 1), round(expected_best([0.0, 1.0, 2.0], 2), 3)
        (1.0, 1.667)
    """
    if not 1 <= k <= len(values):
        raise ValueError(f"the best of {k} needs at least {k} values, got {len(values)}")
    return sum(comb(i, k - 1) * value for i, value in enumerate(sorted(values))) / comb(len(values), k)


def _ring(prompts: Mapping[str, list[list[Row]]]) -> RingFigures:
    # An episode that could not be judged counts in no turn: a turn alone would keep those that failed later.
    judged = {
        key: [rows for rows in episodes if episode_result(rows).reward is not None] for key, episodes in prompts.items()
    }
    whole = _after(judged, None)
    turns = max((len(rows) for episodes in judged.values() for rows in episodes), default=0)
    fewest = min((len(episodes) for episodes in whole.values() if episodes), default=0)
    return RingFigures(
        figures=figures_of(
            {key: [episode_result(rows) for rows in of] for key, of in prompts.items()}, cluster_of_prompt
        ),
        fast_captured=_over_prompts(whole, _fast_captured),
        best_of={
            str(k): found
            for k in (2**power for power in range(fewest.bit_length()))
            if (found := _over_prompts(whole, partial(_best_of, k))) is not None
        },
        turns=tuple(_turn(_after(judged, turn + 1)) for turn in range(turns)),
        solved_problems=_problems_with(whole, lambda episode: episode.is_correct),
        correct_original=_over_prompts(whole, _original),
        solved_originally=_problems_with(whole, lambda episode: bool(episode.is_original)),
    )


def _after(prompts: Mapping[str, Sequence[Sequence[Row]]], turns: int | None) -> Episodes:
    return {
        key: [episode_result(sorted(rows, key=lambda row: row["turn"])[:turns]) for rows in episodes]
        for key, episodes in prompts.items()
    }


def _turn(prompts: Episodes) -> TurnLimitFigures:
    return TurnLimitFigures(
        reward=_over_prompts(prompts, lambda of: _mean(_rewards(of))),
        compiled=_over_prompts(prompts, lambda of: _mean([float(episode.is_compiled) for episode in of])),
        correct=_over_prompts(prompts, lambda of: _mean([float(episode.is_correct) for episode in of])),
        fast=_over_prompts(prompts, lambda of: _mean([float((episode.speedup or 0.0) > BASELINE) for episode in of])),
        fast_captured=_over_prompts(prompts, _fast_captured),
    )


def _over_prompts(prompts: Episodes, value: Value) -> Estimate | None:
    clusters: dict[str, list[float]] = {}
    for key, episodes in prompts.items():
        if episodes and (found := value(episodes)) is not None:
            clusters.setdefault(cluster_of_prompt(key), []).append(found)
    return estimate(clusters.values())


def _best_of(k: int, episodes: Sequence[EpisodeResult]) -> float:
    return expected_best(_rewards(episodes), k)


def _fast_captured(episodes: Sequence[EpisodeResult]) -> float:
    return _mean([share for episode in episodes if (share := fast_captured_of(episode)) is not None])


def _problems_with(prompts: Episodes, has: Callable[[EpisodeResult], bool]) -> tuple[str, ...]:
    return tuple(sorted({problem_of(key) for key, episodes in prompts.items() if any(map(has, episodes))}))


def _original(episodes: Sequence[EpisodeResult]) -> float | None:
    found = [float(episode.is_original) for episode in episodes if episode.is_original is not None]
    return _mean(found) if found else None


def _rewards(episodes: Sequence[EpisodeResult]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
